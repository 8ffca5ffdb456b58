// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"slices"
	"testing"
)

func TestMirrorsOf(t *testing.T) {
	const uris = `'http://mirror.example/debian/dists/bookworm/InRelease' mirror.example_debian_dists_bookworm_InRelease 0 
'http://mirror.example/debian/dists/bookworm-updates/InRelease' mirror.example_debian_dists_bookworm-updates_InRelease 0 
'http://mirror.example/debian-security/dists/bookworm-security/InRelease' mirror.example_debian-security_dists_bookworm-security_InRelease 0 
'https://tools.example/dists/tools-bookworm/InRelease' tools.example_dists_tools-bookworm_InRelease 0 
'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' mirror.example_debian_dists_bookworm_main_binary-amd64_Packages 0 
'https://containers.example/linux/debian/dists/bookworm/InRelease' containers.example_linux_debian_dists_bookworm_InRelease 0 
'http://mirror.example/debian/dists/bookworm/InRelease' mirror.example_debian_dists_bookworm_InRelease 0 
`
	for codename, want := range map[string][]string{
		"bookworm": {"http://mirror.example/debian", "https://containers.example/linux/debian"},
		"trixie":   nil,
	} {
		if got := mirrorsOf(uris, codename); !slices.Equal(got, want) {
			t.Errorf("mirrors of %s: %q, want %q", codename, got, want)
		}
	}
}

func TestCodenameOf(t *testing.T) {
	for release, want := range map[string]string{
		"ID=debian\nVERSION_CODENAME=bookworm\nVERSION_ID=\"12\"\n": "bookworm",
		"VERSION_CODENAME=\"noble\"":                                "noble",
		"UBUNTU_CODENAME=noble\nID=other\n":                         "",
		"":                                                          "",
	} {
		if got := codenameOf(release); got != want {
			t.Errorf("codename of %q: %q, want %q", release, got, want)
		}
	}
}

// The mirror that somebody names is the only one that is asked.
func TestNamedMirror(t *testing.T) {
	t.Setenv(EnvMirror, "http://mirror.example/debian/")
	all, err := mirrors(t.Context())
	if want := []string{"http://mirror.example/debian"}; err != nil || !slices.Equal(all, want) {
		t.Errorf("mirrors() = %q, %v, want %q", all, err, want)
	}
}
