// Package fieldmap maps the fields of a gadget's data source to the parts of a profile.
//
// Compile reads a data source's annotations and field types once, before the gadget starts, and makes a [Plan]. The Plan then
// reads rows. [Plan.Keys], [Plan.Values] and [Plan.Timestamp] read every row without allocating. [Plan.Resource] and
// [Plan.Sample] read rows that have not been seen yet.
//
// An image can only set its own data: it cannot write attributes of a workload's identity or origin. A row can hold any bytes
// at any length. A field that is too short reads as empty, and nothing panics.
package fieldmap
