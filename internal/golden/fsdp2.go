package golden

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// FSDP2 is a Training of several ranks by PyTorch's fully_shard over gloo, which
// tools/golden/fsdp2/make.py writes. Its model and weights are those of the Case of the same name.
// MicroBatches counts those of one rank; micro-batch m of rank r has sequences
// [(m·Ranks+r)·Sequences, (m·Ranks+r+1)·Sequences) of a step. Loss and Valid are the step's, over
// all ranks.
type FSDP2 struct {
	Name     string            `json:"case"`
	Versions map[string]string `json:"versions"` // of what computed it
	Ranks    int               `json:"ranks"`
	Training
}

// LoadFSDP2 reads a run by its case's name. Like Load it may be called from any package's test.
func LoadFSDP2(name string) (*FSDP2, error) {
	root, err := root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "fsdp", "testdata", "fsdp2", name+".json"))
	if err != nil {
		return nil, fmt.Errorf("golden run of FSDP2 %q: %w", name, err)
	}
	var f FSDP2
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("golden run of FSDP2 %q: %w", name, err)
	}
	return &f, nil
}
