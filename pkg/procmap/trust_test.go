package procmap

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// TestTrust checks that an overlay is trusted as much as its layers.
func TestTrust(t *testing.T) {
	mounts := parseMounts([]byte(`20 1 98:1 / / rw - ext4 /dev/root rw
21 20 0:52 / /mnt/remote rw - fuse.stargz host: rw
22 20 0:53 / /mnt/remote/but,not\040this rw - tmpfs none rw
23 20 0:54 / /mnt/odd rw - acmefs none rw
24 20 0:55 / /mnt/over rw - overlay none rw,lowerdir=/lower,upperdir=/mnt/remote/up,workdir=/w
25 20 0:56 / /mnt/itself rw - overlay none rw,lowerdir=/mnt/itself/lower
26 20 0:57 / /mnt/colon:fuse rw - fuse host rw
`))
	for options, want := range map[string]trust{
		`rw,lowerdir=/a:/b,upperdir=/c,workdir=/d,xino=off`: trusted,
		`rw,lowerdir=/a:/b::/data`:                          trusted,
		`ro,lowerdir+=/a,lowerdir+=/b,datadir+=/c`:          trusted,
		`rw,lowerdir=/a:/mnt/remote/1:/b,upperdir=/c`:       avoid,
		`rw,lowerdir=/a::/mnt/remote/data`:                  avoid,
		`rw,lowerdir=/a,upperdir=/mnt/remote/up`:            avoid,
		`ro,lowerdir+=/a,lowerdir+=/mnt/remote`:             avoid,
		`ro,lowerdir+=/a,datadir+=/mnt/remote`:              avoid,
		`rw,lowerdir=/mnt/remote/but\054not\040this/x`:      trusted,
		`rw,lowerdir=/mnt/colon\134:fuse/x`:                 avoid,
		`rw,lowerdir=/mnt/colon:/fuse`:                      trusted,
		`ro,lowerdir+=/mnt/colon:fuse`:                      avoid,
		`rw,lowerdir=/a:/mnt/over`:                          avoid,
		`rw,lowerdir=/a:/mnt/odd`:                           doubtful,
		`rw,lowerdir=l/A:l/B,upperdir=/c`:                   doubtful,
		`rw,lowerdir=/mnt/itself`:                           doubtful,
		`rw`:                                                doubtful,
	} {
		m := mount{dev: device{0, 99}, fstype: "overlay", options: options}
		require.Equal(t, want, m.trust(mounts, 0), options)
	}
	require.Equal(t, doubtful, mounts[5].trust(mounts, 0), "one that hides its own layers")
	require.Equal(t, avoid, mounts[1].trust(mounts, 0))
	require.Equal(t, trusted, mounts[0].trust(mounts, 0))
}

// TestOverlay checks that programs on an overlay over a disk and in memory are identified, as in containers.
func TestOverlay(t *testing.T) {
	toMount(t)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lower"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lower/evil"), sleeper(t), 0o700))
	p := inMounts(t, nil, onOverlay(dir+"/lower", ":", ":"))
	addr := codeOf(t, p, "evil")
	eachWay(t, func(t *testing.T, r *Resolver) {
		place := known(t, r, p, procfs.SinceBoot(), addr)[0]
		require.Equal(t, Known, place.State)
		f, err := place.File.Open()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Zero(t, r.disks.Total()+r.readings.Total())
	})
}
