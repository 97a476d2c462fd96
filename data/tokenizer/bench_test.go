package tokenizer

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goText is up to 4 MB of the Go standard library's source.
func goText(t testing.TB) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skipf("no Go source to read: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "[a-n]*", "*.go"))
	if err != nil || len(files) == 0 {
		t.Skipf("no Go source to read: %v", err)
	}
	var b strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if b.Len()+len(data) <= 4<<20 {
			b.Write(data)
		}
	}
	return b.String()
}

func benchmarkEncode(b *testing.B, tok *Tokenizer) {
	text := goText(b)
	b.SetBytes(int64(len(text)))
	var ids []int32
	for b.Loop() {
		ids = tok.Encode(ids[:0], text)
	}
	b.ReportMetric(float64(len(text))/float64(len(ids)), "bytes/token")
}

func BenchmarkEncodeGoText(b *testing.B) { benchmarkEncode(b, load(b, "qwen2")) }

func BenchmarkEncodeLongWord(b *testing.B) {
	tok := load(b, "qwen2")
	text := strings.Repeat("etaoinshrdlu", 1<<15)
	b.SetBytes(int64(len(text)))
	var ids []int32
	for b.Loop() {
		ids = tok.Encode(ids[:0], text)
	}
}

func BenchmarkTrain(b *testing.B) {
	text := goText(b)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Train(texts(text), Options{VocabSize: 4096}); err != nil {
			b.Fatal(err)
		}
	}
}
