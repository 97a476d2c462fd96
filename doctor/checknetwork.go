package doctor

import (
	"fmt"
	"slices"
	"strings"
)

const networkGroup = "network"

// efa says whether the machine has an EFA.
func (r *Report) efa() bool {
	return slices.ContainsFunc(r.Network.Adapters, func(a Adapter) bool { return a.EFA })
}

// network judges what NCCL may reach other machines by. A run of one machine needs none of it, so nothing blocks
// unless a network is demanded.
func (r *Report) network() {
	n := r.Network
	demanded := r.Needs.EFA
	expected := demanded || r.setting("FI_PROVIDER") == "efa" // the container is made for it
	for _, a := range n.Adapters {
		kind := "no EFA"
		if a.EFA {
			kind = "EFA"
		}
		c := r.add(networkGroup, a.Name, OK, fmt.Sprintf("%s (%s), port %s", kind, a.PCI, strings.ToLower(a.State)), "")
		if a.EFA && a.State != "ACTIVE" {
			c.Verdict, c.Remedy = Remedy, "its port is not active: the instance, or its security group, may not be set up for EFA"
		}
	}
	switch {
	case !r.efa():
		c := r.add(networkGroup, "EFA", Missing, "no device", "")
		if expected {
			who := "FI_PROVIDER"
			if demanded {
				who = r.Needs.By
			}
			c.Remedy, c.Blocks = who+" asks for it: give the pod vpc.amazonaws.com/efa: 1, on an instance that has EFA", demanded
		}
	case len(n.Verbs) == 0:
		c := r.add(networkGroup, "EFA", Remedy, "no device file /dev/infiniband/uverbs*",
			"the host has it, and the container does not: vpc.amazonaws.com/efa: 1 in Kubernetes, or docker run --device /dev/infiniband/uverbs0")
		c.Blocks = demanded
	default:
		r.add(networkGroup, "EFA", OK, "device files "+strings.Join(n.Verbs, ", "), "")
	}
	r.fabrics(expected)
	r.plugins()
	if n.Installer != "" {
		r.add(networkGroup, "EFA installer", OK, n.Installer, "")
	}
}

// fabrics judges what libfabric says. Reliable datagrams (RDM) are a kind of endpoint of the network: they say
// nothing of who may read a GPU's memory, so no more is said here.
func (r *Report) fabrics(expected bool) {
	f := r.Network.FabricInfo
	concerns := expected || r.efa()
	const name = "libfabric"
	if f.Path == "" {
		c := r.add(networkGroup, name, Missing, "no fi_info", "")
		if concerns {
			c.Remedy = "EFA's installer puts it into " + efaBin + "; it shows what NCCL's plugin will find"
		}
		return
	}
	// A line for each provider and fabric, with their types.
	var names []string
	types := map[string][]string{}
	reliable := false
	for _, e := range f.Endpoints {
		name := e.Provider + " " + e.Fabric
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if !slices.Contains(types[name], e.Type) {
			types[name] = append(types[name], e.Type)
		}
		reliable = reliable || e.Provider == "efa" && e.Type == "FI_EP_RDM"
	}
	for _, of := range names {
		provider, fabric, _ := strings.Cut(of, " ")
		r.add(networkGroup, name, OK, fmt.Sprintf("provider %s, fabric %s, %s", provider, fabric, strings.Join(types[of], ", ")), "")
	}
	if f.Problem == "" && reliable {
		return
	}
	found := f.Problem
	if found == "" {
		found = "no provider efa of type FI_EP_RDM"
	}
	c := r.add(networkGroup, name, Missing, found, "")
	if concerns {
		c.Remedy = "without it NCCL's plugin does not start: look at the lines of EFA above, and at FI_ variables"
		c.Blocks = r.Needs.EFA // fi_info has answered as the plugin will be
	}
}

// plugins judges NCCL's network plugins. One that is there was meant to be used.
func (r *Report) plugins() {
	const name = "NCCL's plugin"
	if len(r.Network.Plugins) == 0 {
		c := r.add(networkGroup, name, Missing, "none", "")
		if r.efa() || r.Needs.EFA {
			c.Remedy = "without aws-ofi-nccl NCCL goes over TCP: EFA's installer brings it, or let NCCL_NET_PLUGIN name its file"
			c.Blocks = r.Needs.EFA
		}
		return
	}
	finds := false
	for _, p := range r.Network.Plugins {
		found := p.Path
		if p.Version != "" {
			found = "aws-ofi-nccl " + p.Version + ", " + found
		}
		if !p.Found {
			found += ", which NCCL does not look at"
		}
		finds = finds || p.Found
		r.add(networkGroup, name, OK, found, "")
	}
	if wants := len(wantedPlugins(r.setting("NCCL_NET_PLUGIN"))) > 0; !finds && (wants || r.Needs.EFA) {
		c := &r.Checks[len(r.Checks)-1]
		c.Verdict, c.Blocks = Remedy, r.Needs.EFA
		c.Remedy = "put its folder on LD_LIBRARY_PATH, as the image's environment does, or let NCCL_NET_PLUGIN name the file; without it NCCL goes over TCP"
	}
}

// settings judges what NCCL and libfabric are told.
func (r *Report) settings() {
	for _, x := range r.Settings {
		found := x.Value
		if x.From != fromEnvironment {
			found += " (" + x.From + ")"
		}
		if x.Over != "" {
			found += ", which hides another value in " + x.Over
		}
		c := r.add("settings", x.Name, OK, found, "")
		if c.Remedy = r.advice(x.Name, x.Value); c.Remedy != "" {
			c.Verdict = Remedy
		}
	}
}

// advice says what is wrong with a setting on this machine, if anything.
func (r *Report) advice(name, value string) string {
	lower := strings.ToLower(value)
	switch {
	case name == "NCCL_NET_PLUGIN" && lower == "none" && r.efa():
		return "NCCL loads no plugin so and goes over TCP, though there is an EFA; unset it"
	case name == "NCCL_NET" && lower == "socket" && r.efa():
		return "NCCL goes over TCP so, though there is an EFA; unset it"
	case name == "FI_PROVIDER" && lower != "efa" && r.efa():
		return "libfabric is kept from the EFA; let it be efa"
	case name == "NVIDIA_DRIVER_CAPABILITIES" && lower != "all" && !slices.Contains(strings.Split(lower, ","), "compute"):
		return "the container runtime leaves out libcuda so; add compute"
	case name == "NCCL_SOCKET_IFNAME" && len(r.Network.Interfaces) > 0 && !matchesInterface(value, r.Network.Interfaces):
		return "none of this machine's interfaces is meant, which are " + strings.Join(r.Network.Interfaces, ", ") + ": NCCL does not start"
	}
	return ""
}

// matchesInterface says whether NCCL_SOCKET_IFNAME leaves any interface: it lists beginnings of names, or after
// "=" whole names; "^" before the list is for those that are not to be taken.
func matchesInterface(value string, interfaces []string) bool {
	value, not := strings.CutPrefix(value, "^")
	value, whole := strings.CutPrefix(value, "=")
	listed := func(name string) bool {
		return slices.ContainsFunc(strings.Split(value, ","), func(x string) bool {
			return x != "" && (name == x || !whole && strings.HasPrefix(name, x))
		})
	}
	return slices.ContainsFunc(interfaces, func(name string) bool { return listed(name) != not })
}
