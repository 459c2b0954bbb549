package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// The demo's picture shows only the demo's programs.
func TestPicture(t *testing.T) {
	programs := []running{{busy: busyPrograms()[0]}}
	own := timed(50, receiver.Frame{Name: "main.hashOrders", Type: "go"}, receiver.Frame{Name: "main.main", Type: "go"})
	other := timed(50, receiver.Frame{Name: "secret_function", Type: "native"})
	path := filepath.Join(t.TempDir(), pictureFile)
	require.NoError(t, writePicture(path, programs, []receiver.Sample{other, own}))
	picture, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(picture), "main.hashOrders")
	require.NotContains(t, string(picture), "secret_function")
	require.Regexp(t, resultFiles, pictureFile)
}
