// Package config reads the settings of the exporters and of names. It applies their sources in order of precedence, checks
// their values, and reports mistakes.
//
// Every setting is one row of the table in settings.go or names.go. The parser, the checks, the reference and the tests use
// these tables.
//
// The sources, strongest first, are environment, command line, config file, preset and default.
//
// Load opens no file and no connection. A mistake in one exporter does not affect the others.
package config
