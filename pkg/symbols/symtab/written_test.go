package symtab

import (
	"bufio"
	"bytes"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// Written returns an encoded Table.
func Written(t testing.TB, table *Table) []byte {
	t.Helper()
	var b bytes.Buffer
	c := Coder{w: bufio.NewWriter(&b)}
	c.table(table)
	require.NoError(t, c.Err)
	require.NoError(t, c.w.Flush())
	return b.Bytes()
}

func ReadWritten(b []byte, left int64) (*Table, error) {
	c := Coder{R: bufio.NewReader(bytes.NewReader(b)), Left: left}
	table := new(Table)
	c.table(table)
	return table, c.Err
}

// Fill sets all fields in v to nonzero values. References are 1, and lists contain two items.
func Fill(v reflect.Value) {
	v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			Fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		Fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			Fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		Fill(key)
		Fill(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("abc")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	default:
		panic(v.Kind().String())
	}
}

// Decoding a Table must restore each field. A new field must also be added to codec.go.
func TestCodecKeepsFields(t *testing.T) {
	var table Table
	Fill(reflect.ValueOf(&table).Elem())
	n := new(Namer)
	n.Add([]byte("first"))
	n.Add([]byte("second"))
	n.Add([]byte("third"))
	one := n.Finish()
	for i := range table.Layers {
		table.Layers[i].Names = one
	}
	table.Lines.Files, table.Lines.Names = *one, *one
	table.Golang.Start, table.Golang.Pointer = []uint32{1, 2}, 8
	table.Golang.Size = table.Golang.Loaded[1].Bytes()
	got, err := ReadWritten(Written(t, &table), 1<<20)
	require.NoError(t, err)
	require.Equal(t, &table, got)
}
