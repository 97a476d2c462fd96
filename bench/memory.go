package bench

// resident follows the greatest resident memory of this process, from each begin
// to the end that follows it.
type resident struct {
	known bool  // the system lets this process begin again
	peak  int64 // bytes; 0: not known
}

func (r *resident) begin() { r.known = forgetPeak() == nil }

func (r *resident) end() error {
	if !r.known {
		return nil
	}
	now, err := peakMemory()
	r.peak = max(r.peak, now)
	return err
}
