// Package fieldmap maps the fields of a gadget's data source to the parts of a profile.
//
// Compile reads a data source's annotations and field types once, before the gadget starts, and
// makes a [Plan]. The Plan then reads rows: [Plan.Keys], [Plan.Values] and [Plan.Timestamp] for
// every row, without allocating; [Plan.Resource] and [Plan.Sample] for rows that have not been
// seen yet.
//
// An image is trusted with its own data only: it cannot write attributes of a workload's identity or
// origin. A row can hold any bytes at any length.
// A field that is too short reads as empty, nothing panics.
package fieldmap
