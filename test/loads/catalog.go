package loads

// shares are the shares of each program of known shares.
var shares = []Share{{"heavy", 60}, {"light", 30}, {"rest", 10}}

// chain are the callers of each function, from the entry on.
func chain(entry string) []string { return []string{entry, "run", "step", "work"} }

// libraryChain is the same for a shared library that exports load_step.
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
		Chain: chain("main"), Shares: shares, build: buildGo("go/load.go"),
	},
	{
		Name: "go-stripped", What: "Go, stripped (-s -w)", Naming: GoTable, FrameType: "go", Entry: "main",
		Chain: chain("main"), Shares: shares, build: buildGo("go/load.go", "-ldflags=-s -w"),
	},
	{
		Name: "go-pie", What: "Go, stripped, position-independent", Naming: GoTable, FrameType: "go", Entry: "main",
		Chain: chain("main"), Shares: shares, build: buildGo("go/load.go", "-ldflags=-s -w", "-buildmode=pie"),
	},
	{
		Name: "node-perf", What: "Node with --perf-basic-prof", Packages: []string{"nodejs"}, Naming: Interpreter, FrameType: "v8js",
		Entry: "<anonymous>", Chain: chain("<anonymous>"), Shares: shares, build: script("load.js", "node", "--perf-basic-prof"),
	},

	{
		Name: "compile", What: "a machine that compiles C all the time", Packages: cPackages, Naming: DynamicSymbols, FrameType: "native",
		build: buildCompile,
	},
	{
		Name: "xz", What: "xz, Debian's", Packages: []string{"xz-utils"}, Naming: DynamicSymbols, FrameType: "native",
		build: shell(`make_data; while again; do for level in 6 1 9e; do xz -T1 -$level -c data | xz -dc >/dev/null; done; done`),
	},
	{
		Name: "openssl", What: "openssl, Debian's", Packages: []string{"openssl"}, Naming: DynamicSymbols, FrameType: "native",
		build: shell(`while again; do openssl speed -seconds 1 -bytes 4096 sha256 sha512 md5 aes-256-cbc rsa2048 ecdsap256 ecdsap384 ed25519 ecdhx25519
for cipher in aes-128-gcm chacha20-poly1305 camellia-128-cbc sha3-256 blake2b512; do openssl speed -seconds 1 -bytes 1024 -evp $cipher; done
done >/dev/null 2>&1`),
	},
	{
		Name: "sqlite3", What: "sqlite3, Debian's", Packages: []string{"sqlite3"}, Naming: DynamicSymbols, FrameType: "native",
		build: with("work.sql", shell(`for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4; do echo .open :memory:; cat work.sql; done; done >many.sql
while again; do sqlite3 <many.sql >/dev/null; done`)),
	},
	{
		Name: "bash", What: "bash, Debian's", Packages: []string{"bash"}, Naming: DynamicSymbols, FrameType: "native",
		build: script("work.sh", "/bin/bash"),
	},
	{
		Name: "perl-work", What: "perl, Debian's, at work", Packages: []string{"perl"}, Naming: DynamicSymbols, FrameType: "native",
		build: script("work.pl", "/usr/bin/perl"),
	},
	{
		Name: "python-work", What: "python3, Debian's, at work", Packages: []string{"python3"}, Naming: DynamicSymbols, FrameType: "native",
		build: script("work.py", "/usr/bin/python3"),
	},
	{
		Name: "node-work", What: "Node with --perf-basic-prof, at work", Packages: []string{"nodejs"}, Naming: Interpreter, FrameType: "v8js",
		build: script("work.js", "node", "--perf-basic-prof"),
	},
	{
		Name: "cpp-work", What: "C++ over libstdc++, at work", Packages: []string{"g++", "libc6-dev"}, Naming: SymbolTable, FrameType: "native",
		build: native("g++", "work.cpp", "-O2", "-fno-omit-frame-pointer"),
	},
	{
		Name: "rust-work", What: "Rust, at work", Packages: []string{"rustc", "libc6-dev", "gcc"}, Naming: SymbolTable, FrameType: "native",
		build: native("rustc", "work.rs", "-Copt-level=2", "-Cforce-frame-pointers=yes"),
	},
	{
		Name: "go-work", What: "Go, at work", Naming: GoTable, FrameType: "go",
		build: buildGo("gowork/work.go"),
	},
	{
		Name: "go-work-pie", What: "Go, stripped, position-independent, at work", Naming: GoTable, FrameType: "go",
		build: buildGo("gowork/work.go", "-ldflags=-s -w", "-buildmode=pie"),
	},
}
