// Package config owns the settings of the exporters and of reading names. It knows their sources and precedence, checks their
// values, and reports mistakes.
//
// Every setting is one row of the table in settings.go or names.go. Parsing, validation, the tables of the
// reference and the tests read these tables.
//
// Sources, strongest first: environment, command line, config file, preset, default.
//
// Load opens no file and dials nothing. A mistake in one exporter leaves the others alone.
package config
