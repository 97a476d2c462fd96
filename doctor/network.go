package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Network is what NCCL may reach other machines by.
type Network struct {
	Installer  string    `json:"efa_installer,omitempty"` // the release of EFA's installer, where it was run
	Adapters   []Adapter `json:"adapters"`                // RDMA devices, EFA among them
	Verbs      []string  `json:"verbs"`                   // device files by which a process reaches them
	FabricInfo Fabrics   `json:"fi_info"`
	Plugins    []Plugin  `json:"nccl_plugins"`
	Interfaces []string  `json:"interfaces"` // of IP
}

// Adapter is a device of /sys/class/infiniband.
type Adapter struct {
	Name  string `json:"name"`
	PCI   string `json:"pci"`   // vendor and device, such as "1d0f:efa1"
	State string `json:"state"` // of its first port: "ACTIVE"
	EFA   bool   `json:"efa"`
}

// Fabrics are what libfabric's fi_info -p efa says.
type Fabrics struct {
	Path      string   `json:"path,omitempty"` // of fi_info; empty where there is none
	Problem   string   `json:"problem,omitempty"`
	Endpoints []Fabric `json:"endpoints,omitempty"`
}

// Fabric is one of its answers.
type Fabric struct {
	Provider string `json:"provider"`
	Fabric   string `json:"fabric"`
	Domain   string `json:"domain"`
	Version  string `json:"version"`
	Type     string `json:"type"` // FI_EP_RDM: reliable datagrams, of a network
	Protocol string `json:"protocol"`
}

// Plugin is a file that NCCL may load to reach a network.
type Plugin struct {
	Path    string `json:"path"`              // links followed
	Version string `json:"version,omitempty"` // that it says of itself
	Found   bool   `json:"found"`             // whether NCCL finds it, as the environment is
}

// Where EFA's installer puts things.
const (
	installed = "/opt/amazon/efa_installed_packages"
	efaBin    = "/opt/amazon/efa/bin"
	ofiNCCL   = "/opt/amazon/ofi-nccl"
)

func (s Sources) network(settings []Setting) Network {
	n := Network{
		Adapters: []Adapter{}, Verbs: append([]string{}, s.glob("/dev/infiniband/uverbs*")...),
		Plugins: s.plugins(settings), Interfaces: []string{},
	}
	if text, ok := strings.CutPrefix(s.line(installed), "# EFA installer version: "); ok {
		n.Installer, _, _ = strings.Cut(text, "\n")
	}
	for _, path := range s.glob("/sys/class/infiniband/*") {
		id := func(file string) string { return strings.TrimPrefix(s.line(path+"/device/"+file), "0x") }
		a := Adapter{Name: filepath.Base(path), PCI: id("vendor") + ":" + id("device")}
		_, a.State, _ = strings.Cut(s.line(path+"/ports/1/state"), ": ") // "4: ACTIVE"
		a.EFA = strings.HasPrefix(a.PCI, "1d0f:efa")
		n.Adapters = append(n.Adapters, a)
	}
	for _, path := range s.glob("/sys/class/net/*") {
		if name := filepath.Base(path); len(s.glob(path+"/ifindex")) > 0 {
			n.Interfaces = append(n.Interfaces, name)
		}
	}
	n.FabricInfo = s.fabrics()
	return n
}

// fabrics asks fi_info.
func (s Sources) fabrics() (f Fabrics) {
	for _, dir := range append(filepath.SplitList(s.env("PATH")), efaBin) {
		file := filepath.Join(dir, "fi_info")
		if info, err := os.Stat(s.Root + file); filepath.IsAbs(file) && err == nil && info.Mode().IsRegular() {
			f.Path = file
			break
		}
	}
	if f.Path == "" {
		return f
	}
	patience := s.patience
	if patience == 0 {
		patience = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Root+f.Path, "-p", "efa")
	cmd.Env = s.environ()
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	f.Endpoints = parseFabrics(string(out))
	switch said := firstLine(stderr.String()); {
	case ctx.Err() != nil:
		f.Problem = fmt.Sprintf("fi_info -p efa gave no answer in %v", patience)
	case err != nil && said != "":
		f.Problem = "fi_info -p efa says: " + said
	case err != nil:
		f.Problem = fmt.Sprintf("fi_info -p efa fails: %v", err)
	case len(f.Endpoints) == 0:
		f.Problem = "fi_info -p efa names no provider"
	}
	return f
}

func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return text
}

// parseFabrics reads groups of lines, the first of which is not indented:
//
//	provider: efa
//	    fabric: efa-direct
//	    type: FI_EP_RDM
func parseFabrics(text string) (list []Fabric) {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok && key == "provider" {
			list = append(list, Fabric{Provider: value})
		}
		if !ok || len(list) == 0 {
			continue
		}
		f := &list[len(list)-1]
		switch key {
		case "fabric":
			f.Fabric = value
		case "domain":
			f.Domain = value
		case "version":
			f.Version = value
		case "type":
			f.Type = value
		case "protocol":
			f.Protocol = value
		}
	}
	return list
}

// pluginNames are the files that NCCL looks for (its src/plugin/net.cc): NCCL_NET_PLUGIN may be a file, a file's
// name or what stands in it behind "libnccl-net-"; without it the second.
var pluginNames = []string{"libnccl-net-ofi.so", "libnccl-net.so"}

// pluginFolders are looked into where the system's loader does not.
var pluginFolders = []string{ofiNCCL + "/lib64", ofiNCCL + "/lib", ofiNCCL + "/lib/*-linux-gnu", "/opt/aws-ofi-nccl/lib*", "/usr/local/lib*"}

// plugins returns NCCL's network plugins, each file once, those that NCCL finds first. None is opened: they
// change the environment when they are.
func (s Sources) plugins(settings []Setting) []Plugin {
	list := []Plugin{}
	root, _ := filepath.EvalSymlinks(s.Root) // empty is the machine's
	add := func(path string, found bool) {
		real, err := filepath.EvalSymlinks(s.Root + path)
		if err != nil {
			return
		}
		path = strings.TrimPrefix(real, root)
		if !slices.ContainsFunc(list, func(p Plugin) bool { return p.Path == path }) {
			list = append(list, Plugin{Path: path, Version: pluginVersion(real), Found: found})
		}
	}
	asked := wantedPlugins(valueOf(settings, "NCCL_NET_PLUGIN"))
	for _, name := range asked {
		if filepath.IsAbs(name) {
			add(name, true)
			continue
		}
		for _, dir := range s.loadersFolders() {
			add(filepath.Join(dir, name), true)
		}
	}
	for _, pattern := range append(s.loadersFolders(), pluginFolders...) {
		for _, name := range pluginNames {
			for _, path := range s.glob(filepath.Join(pattern, name)) {
				add(path, false)
			}
		}
	}
	return list
}

// wantedPlugins are the files that NCCL tries for a value of NCCL_NET_PLUGIN.
func wantedPlugins(value string) (names []string) {
	if value == "" {
		return []string{"libnccl-net.so"}
	}
	for _, name := range strings.Split(value, ",") {
		switch {
		case name == "none" || name == "STATIC_PLUGIN":
		case strings.Contains(name, "/") || strings.HasPrefix(name, "lib") && strings.HasSuffix(name, ".so"):
			names = append(names, name)
		default:
			names = append(names, "libnccl-net-"+name+".so")
		}
	}
	return names
}

// loadersFolders are where the system's loader looks for libraries.
func (s Sources) loadersFolders() (list []string) {
	add := func(dir string) {
		if dir = strings.TrimSpace(dir); filepath.IsAbs(dir) {
			list = append(list, filepath.Clean(dir))
		}
	}
	for _, dir := range filepath.SplitList(s.env("LD_LIBRARY_PATH")) {
		add(dir)
	}
	for _, file := range append([]string{"/etc/ld.so.conf"}, s.glob("/etc/ld.so.conf.d/*.conf")...) {
		text, _ := s.read(file)
		for line := range strings.Lines(text) {
			add(line) // an include, and a comment, is no absolute path
		}
	}
	for _, pattern := range []string{"/lib64", "/usr/lib64", "/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/lib", "/usr/lib"} {
		list = append(list, s.glob(pattern)...)
	}
	return list
}

var pluginBanner = regexp.MustCompile(`aws-ofi-nccl (\d+\.\d+\.\d+[\w.-]*)`)

// pluginVersion looks for what the plugin says when it starts, "Initializing aws-ofi-nccl 1.18.0".
func pluginVersion(file string) string {
	const most = 64 << 20 // it has a few MiB
	if info, err := os.Stat(file); err != nil || info.Size() > most {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	if m := pluginBanner.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}
