// Package config owns the settings of the exporters, and those of reading names: where they come from, which
// source wins, what a value may be, and what is answered to a mistake.
//
// Every setting is one row of the table in settings.go or names.go. Parsing, validation, the tables of the
// reference and the tests read these tables.
//
// Sources, strongest first: environment, command line, config file, preset, default.
//
// Load opens no file and dials nothing. A mistake in one exporter leaves the others alone.
package config
