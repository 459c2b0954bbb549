// dotnet FOLDER ASSEMBLY runs an assembly with the .NET runtime in a folder, like the program dotnet.
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int initialize(const char *, const char *, int, const char **, const char **, void **, unsigned int *);
typedef int execute(void *, unsigned int, int, const char **, const char *, unsigned int *);

static char assemblies[1 << 20]; // the runtime's own, separated by colons

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	DIR *folder = opendir(argv[1]);
	if (!folder) {
		perror(argv[1]);
		return 1;
	}
	size_t n = 0;
	for (struct dirent *e; (e = readdir(folder)) && n < sizeof(assemblies);) {
		size_t length = strlen(e->d_name);
		if (length > 4 && !strcmp(e->d_name + length - 4, ".dll"))
			n += (size_t)snprintf(assemblies + n, sizeof(assemblies) - n, "%s/%s:", argv[1], e->d_name);
	}
	closedir(folder);

	char library[4096];
	snprintf(library, sizeof(library), "%s/libcoreclr.so", argv[1]);
	void *runtime = dlopen(library, RTLD_NOW);
	if (!runtime) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	initialize *start = (initialize *)dlsym(runtime, "coreclr_initialize");
	execute *run = (execute *)dlsym(runtime, "coreclr_execute_assembly");
	const char *keys[] = {"TRUSTED_PLATFORM_ASSEMBLIES", "NATIVE_DLL_SEARCH_DIRECTORIES", "System.Globalization.Invariant"};
	const char *values[] = {assemblies, argv[1], "true"};
	void *host;
	unsigned int domain, code = 1;
	int status = start && run ? start(argv[0], "load", 3, keys, values, &host, &domain) : -1;
	if (status >= 0)
		status = run(host, domain, 0, NULL, argv[2], &code);
	if (status < 0) {
		fprintf(stderr, "the runtime in %s: error %#x\n", argv[1], (unsigned int)status);
		return 1;
	}
	return (int)code;
}
