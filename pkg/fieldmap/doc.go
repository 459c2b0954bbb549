// Package fieldmap maps the fields of a gadget's data source to the parts of a profile.
//
// Compile reads a data source's annotations and field types once, before the gadget starts, and creates a [Plan]. The Plan
// then reads rows. [Plan.KeysOf], [Plan.Values] and [Plan.Timestamp] read every row without allocating. [Plan.Resource] and
// [Plan.SampleOf] read rows whose keys are new.
//
// An image can only set its own data. It cannot set attributes that identify a workload or its origin. A row can hold any
// bytes at any length. A field that is too short reads as empty, and nothing panics.
package fieldmap
