package golden

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
)

// readTensors reads all float32 tensors of a safetensors file that make.py wrote. It is a reader of
// its own, a few lines long, so that a mistake in package safetensors cannot hide in its own test.
func readTensors(path string) (map[string][]float32, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(file) < 8 {
		return nil, errors.New("tensors.safetensors: shorter than its header's length")
	}
	length := binary.LittleEndian.Uint64(file)
	if length > uint64(len(file)-8) {
		return nil, fmt.Errorf("tensors.safetensors: a header of %d bytes in a file of %d", length, len(file))
	}
	var header map[string]struct {
		Type    string `json:"dtype"`
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:8+length], &header); err != nil {
		return nil, fmt.Errorf("tensors.safetensors: header: %w", err)
	}
	data := file[8+length:]
	tensors := make(map[string][]float32, len(header))
	for name, entry := range header {
		if name == "__metadata__" {
			continue
		}
		from, to := entry.Offsets[0], entry.Offsets[1]
		if entry.Type != "F32" || from < 0 || from > to || to > len(data) || (to-from)%4 != 0 {
			return nil, fmt.Errorf("tensors.safetensors: %s: %s at [%d, %d) is no float32 tensor of the file", name, entry.Type, from, to)
		}
		values := make([]float32, (to-from)/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[from+4*i:]))
		}
		tensors[name] = values
	}
	return tensors, nil
}
