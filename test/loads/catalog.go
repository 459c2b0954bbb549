package loads

// shares is what each program of known shares does.
var shares = []Share{{"heavy", 60}, {"light", 30}, {"rest", 10}}

// chain is how each gets there from its entry.
func chain(entry string) []string { return []string{entry, "run", "step", "work"} }

// libraryChain is the same where a shared library exports load_step.
var libraryChain = []string{"main", "run", "step", "load_step", "work"}

var cPackages = []string{"gcc", "libc6-dev", "binutils"}

var catalog = []Load{
	{
		Name: "python", What: "Python, Debian's", Packages: []string{"python3"}, Naming: Interpreter, FrameType: "cpython",
		Entry: "<module>", Chain: chain("<module>"), Shares: shares, build: script("load.py", "/usr/bin/python3"),
	},
	{
		Name: "php", What: "PHP, Debian's", Packages: []string{"php-cli"}, Naming: Interpreter, FrameType: "php",
		Entry: "<top-level>", Chain: chain("<top-level>"), Shares: shares, build: script("load.php", "/usr/bin/php"),
	},
	{
		Name: "perl", What: "Perl, Debian's", Packages: []string{"perl"}, Naming: Interpreter, FrameType: "perl",
		Entry: "<top-level>", Chain: chain("<top-level>"), Shares: shares, build: script("load.pl", "/usr/bin/perl"),
	},
	{
		Name: "ruby", What: "Ruby, Debian's", Packages: []string{"ruby"}, Naming: Interpreter, FrameType: "ruby",
		Entry: "<main>", Chain: chain("<main>"), Shares: shares, build: script("load.rb", "/usr/bin/ruby"),
	},
	{
		Name: "node", What: "Node", Packages: []string{"nodejs"}, Naming: Interpreter, FrameType: "v8js",
		Entry: "<anonymous>", Chain: chain("<anonymous>"), Shares: shares, build: script("load.js", "node"),
	},
	{
		Name: "java", What: "Java, OpenJDK", Packages: []string{"default-jdk-headless"}, Naming: Interpreter, FrameType: "jvm",
		Entry: "main", Chain: chain("main"), Shares: shares, build: buildJava,
	},
	{
		Name: "c-fp", What: "C with frame pointers", Packages: cPackages, Naming: SymbolTable, FrameType: "native",
		Entry: "main", Chain: chain("main"), Shares: shares,
		build: native("gcc", "load.c", "-O1", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"),
	},
	{
		Name: "c", What: "C without frame pointers", Packages: cPackages, Naming: SymbolTable, FrameType: "native",
		Entry: "main", Chain: chain("main"), Shares: shares, build: native("gcc", "load.c", "-O2", "-fomit-frame-pointer"),
	},
	{
		Name: "c-stripped", What: "C without frame pointers, stripped", Packages: cPackages, Naming: Stripped, FrameType: "native",
		Entry: "main", Chain: chain("main"), Shares: shares, build: stripped(native("gcc", "load.c", "-O2", "-fomit-frame-pointer")),
	},
	{
		Name: "c-lib", What: "C in a shared library with a symbol table", Packages: cPackages, Naming: SymbolTable, FrameType: "native",
		Entry: "main", Chain: libraryChain, Shares: shares, build: library(false),
	},
	{
		Name: "c-lib-stripped", What: "C in a stripped shared library", Packages: cPackages, Naming: Stripped, FrameType: "native",
		Entry: "main", Chain: libraryChain, Shares: shares, build: library(true),
	},
	{
		Name: "cpp", What: "C++ over libstdc++", Packages: []string{"g++", "libc6-dev"}, Naming: SymbolTable, FrameType: "native",
		Entry: "main", Chain: chain("main"), Shares: shares, build: native("g++", "load.cpp", "-O2"),
	},
	{
		Name: "rust", What: "Rust", Packages: []string{"rustc", "libc6-dev", "gcc"}, Naming: SymbolTable, FrameType: "native",
		Entry: "main", Chain: chain("main"), Shares: shares, build: native("rustc", "load.rs", "-Copt-level=2"),
	},
	{
		Name: "go", What: "Go", Naming: GoTable, FrameType: "go", Entry: "main",
		Chain: chain("main"), Shares: shares, build: buildGo(),
	},
	{
		Name: "go-stripped", What: "Go, stripped (-s -w)", Naming: GoTable, FrameType: "go", Entry: "main",
		Chain: chain("main"), Shares: shares, build: buildGo("-ldflags=-s -w"),
	},
	{
		Name: "go-pie", What: "Go, stripped, position-independent", Naming: GoTable, FrameType: "go", Entry: "main",
		Chain: chain("main"), Shares: shares, build: buildGo("-ldflags=-s -w", "-buildmode=pie"),
	},
	{
		Name: "node-perf", What: "Node with --perf-basic-prof", Packages: []string{"nodejs"}, Naming: Interpreter, FrameType: "v8js",
		Entry: "<anonymous>", Chain: chain("<anonymous>"), Shares: shares, build: script("load.js", "node", "--perf-basic-prof"),
	},

	{
		Name: "compile", What: "a machine that compiles C without pause", Packages: cPackages, Naming: DynamicSymbols, FrameType: "native",
		Gone: true, build: buildCompile,
	},
	{
		Name: "xz", What: "xz, Debian's", Packages: []string{"xz-utils"}, Naming: DynamicSymbols, FrameType: "native",
		build: shell(`make_data; while again; do xz -T1 -6 -c data >/dev/null; done`),
	},
	{
		Name: "openssl", What: "openssl, Debian's", Packages: []string{"openssl"}, Naming: DynamicSymbols, FrameType: "native",
		build: shell(`while again; do openssl speed -seconds 20 -bytes 4096 sha256 >/dev/null 2>&1; done`),
	},
	{
		Name: "sqlite3", What: "sqlite3, Debian's", Packages: []string{"sqlite3"}, Naming: DynamicSymbols, FrameType: "native",
		build: shell(`while again; do sqlite3 :memory: "with recursive t(n, h) as (select 1, 'a' union all ` +
			`select n+1, hex(n*31 % 1009) from t limit 5000000) select count(distinct h), sum(length(h)) from t order by 1" >/dev/null; done`),
	},
	{
		Name: "bash", What: "bash, Debian's", Packages: []string{"bash"}, Naming: DynamicSymbols, FrameType: "native",
		build: command("/bin/bash", "-c", `echo ready; for ((;;)); do a=${a:0:50}$((i++)); [[ $a == *777 ]] && a=; done`),
	},
	{
		Name: "perl-work", What: "perl, Debian's, sorting and matching", Packages: []string{"perl"}, Naming: DynamicSymbols, FrameType: "native",
		build: command("/usr/bin/perl", "-e", `$| = 1; print "ready\n"; while (1) { my %h; $h{$_ * 31 % 1009} .= $_ for 1 .. 20000; `+
			`my @s = sort { $h{$a} cmp $h{$b} } keys %h; $n += grep { /77/ } @s }`),
	},
	{
		Name: "python-work", What: "python3, Debian's, JSON and regular expressions", Packages: []string{"python3"}, Naming: DynamicSymbols, FrameType: "native",
		build: command("/usr/bin/python3", "-c", "import json, re\nprint('ready', flush=True)\nwhile True:\n"+
			"    s = json.dumps([{'id': i, 'name': 'n%d' % i} for i in range(3000)])\n    len(re.findall('\"n[0-9]*7\"', s)), sorted(json.loads(s), key=lambda x: x['name'])\n"),
	},
}
