package config_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/config"
	"github.com/google/go-cmp/cmp"
)

// FuzzLoad: no text makes loading panic, and what loads without a mistake survives Marshal.
func FuzzLoad(f *testing.F) {
	var r run
	f.Add(config.Bind(&r).Template())
	for _, text := range []string{
		"data: {paths: [a]}", "a: &a 1\nb: *a\n<<: [*a, *b]", "a: ~\n? b\n: c", "--- |\n x\n...\n", "%YAML 1.2\n",
		"data:\n  paths: [\"\\u00e9\", 'a''b']\n  seed: 1_0\n", "\ufeffrun:\r\n  name: >-\r\n    a\r\n    b\r\n", "!!a b: c",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r run
		b := config.Bind(&r)
		b.Load("run.yaml", text)
		b.Set(string(text))
		b.Set("data.paths=" + string(text))
		b.Replace("cluster.yaml", text, "scaling", "run")
		if mistakes(b) != nil {
			return
		}
		if diff := cmp.Diff(r, load(t, b.Marshal()), emptyIsNil); diff != "" {
			t.Fatalf("%s\nin\n%s", diff, b.Marshal())
		}
	})
}
