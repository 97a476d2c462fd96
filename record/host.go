package record

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Build is which program ran, as the Go linker recorded it.
type Build struct {
	Version  Value[string] `json:"version"`  // of the module
	Commit   Value[string] `json:"commit"`   // the full hash
	Modified Value[bool]   `json:"modified"` // whether the working tree differed from it
	Go       string        `json:"go"`       // the Go version
}

// ThisBuild describes the running program.
func ThisBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(info)
}

func buildOf(info *debug.BuildInfo) Build {
	b := Build{
		Version:  Unknown[string]("built from a working tree without a version"),
		Commit:   Unknown[string]("built without version control"),
		Modified: Unknown[bool]("built without version control"),
		Go:       runtime.Version(),
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = Known(v)
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = Known(s.Value)
		case "vcs.modified":
			b.Modified = Known(s.Value == "true")
		}
	}
	return b
}

// Host is the machine a run had.
type Host struct {
	Name     Value[string] `json:"name"`
	Platform string        `json:"platform"` // GOOS/GOARCH
	OS       Value[string] `json:"os"`       // the system's own name and version
	Kernel   Value[string] `json:"kernel"`
	CPU      Value[string] `json:"cpu"`          // the processor's model
	Cores    Value[int]    `json:"cores"`        // physical, of the machine
	CPUs     int           `json:"cpus"`         // logical, that this process may use
	Memory   Value[int64]  `json:"memory_bytes"` // of the machine
}

// ThisHost describes the machine that the program runs on.
func ThisHost() Host {
	h := Host{
		Name:     ValueOf(os.Hostname()),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Kernel:   ValueOf(kernel()),
		CPUs:     runtime.NumCPU(),
	}
	h.describe()
	return h
}

// kernel returns the kernel's release.
func kernel() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	release := unix.ByteSliceToString(u.Release[:])
	if release == "" {
		return "", errors.New("uname gives no release")
	}
	return release, nil
}
