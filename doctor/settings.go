package doctor

import (
	"path/filepath"
	"slices"
	"strings"
)

// Setting is a variable that NCCL, libfabric, the driver or the search for libraries reads.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`           // "environment", or the file
	Over  string `json:"over,omitempty"` // the file whose value it hides
}

const fromEnvironment = "environment"

// isRead says whether a variable is read by those.
func isRead(name string) bool {
	for _, prefix := range []string{"NCCL_", "FI_", "OFI_NCCL_", "RDMAV_", "CUDA_", "GOFSDP_LIB"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}, name)
}

// settings returns what holds, by name. NCCL reads a file of the user's and then one of the machine's, and takes
// of each what is not set yet (its src/misc/param.cc), so the environment goes first.
func (s Sources) settings() []Setting {
	var list []Setting
	add := func(name, value, from string) {
		at := slices.IndexFunc(list, func(x Setting) bool { return x.Name == name })
		switch {
		case at < 0:
			list = append(list, Setting{Name: name, Value: value, From: from})
		case from == fromEnvironment:
			list[at].Value = value // of two the last one counts, as for exec
		case list[at].Value != value && list[at].Over == "" && list[at].From != from:
			list[at].Over = from
		}
	}
	for _, v := range s.environ() {
		if name, value, _ := strings.Cut(v, "="); isRead(name) {
			add(name, value, fromEnvironment)
		}
	}
	users := s.env("NCCL_CONF_FILE")
	if home := s.env("HOME"); users == "" && home != "" {
		users = filepath.Join(home, ".nccl.conf")
	}
	for _, file := range []string{users, "/etc/nccl.conf"} {
		if file == "" {
			continue
		}
		text, _ := s.read(file)
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
				continue
			}
			if name, value, ok := strings.Cut(line, "="); ok {
				add(name, value, file)
			}
		}
	}
	slices.SortFunc(list, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// setting returns the value that holds, empty where there is none.
func (m Machine) setting(name string) string { return valueOf(m.Settings, name) }

func valueOf(list []Setting, name string) string {
	for _, x := range list {
		if x.Name == name {
			return x.Value
		}
	}
	return ""
}
