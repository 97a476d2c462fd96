package fsdp

// Tests look at an engine's memory in place, and change it there, on devices
// whose memory the host sees.

// own returns what this rank holds of a parameter's master weights, and the index
// of the first of these elements.
func (e *Engine) own(param string) (weights []float32, first int) {
	first, n := e.Owned(param)
	if n == 0 {
		return nil, 0
	}
	return e.at(e.owned(param, first, make([]float32, n))).F32(), first
}

// param returns a parameter's master weights where one rank holds all of them.
func (e *Engine) param(name string) []float32 {
	w, _ := e.own(name)
	if len(w) != e.Plan.slot(name).Len() {
		panic("fsdp: no rank holds all of " + name)
	}
	return w
}

// grad returns a parameter's gradient where the plan keeps it whole.
func (e *Engine) grad(name string) []float32 {
	s := e.Plan.slot(name)
	return e.at(e.Plan.gradient(s.Unit, extent{s.Off, s.Off + s.Len()})).F32()
}

// fresh gives this rank's weights their first values.
func fresh(e *Engine, seed uint64) error {
	var w []float32
	for _, p := range e.Plan.Model.Params() {
		first, n := e.Owned(p.Name)
		w = append(w[:0], make([]float32, n)...)
		e.Plan.Model.InitParam(w, p, seed, first)
		if err := e.WriteOwned(p.Name, first, w); err != nil {
			return err
		}
	}
	return e.Refresh()
}

// ownedBy returns copies of what this rank holds of each parameter.
func ownedBy(e *Engine) (map[string]part, error) {
	all := map[string]part{}
	for _, p := range e.Plan.Model.Params() {
		first, n := e.Owned(p.Name)
		w := make([]float32, n)
		if err := e.ReadOwned(p.Name, first, w); err != nil {
			return nil, err
		}
		all[p.Name] = part{first, w}
	}
	return all, nil
}
