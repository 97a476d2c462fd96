package tokenizer_test

import (
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/data/tokenizer"
)

func Example() {
	corpus := func(yield func(string, error) bool) {
		yield(strings.Repeat("the tokens of the text\n", 100), nil)
	}
	t, err := tokenizer.Train(corpus, tokenizer.Options{VocabSize: 262})
	if err != nil {
		fmt.Println(err)
		return
	}
	ids := t.Encode(nil, "the text<|endoftext|>")
	for _, id := range ids {
		fmt.Printf("%d %q\n", id, t.TokenBytes(id))
	}
	fmt.Printf("%s\n", t.Decode(nil, ids))
	// Output:
	// 83 "t"
	// 257 "he"
	// 256 " t"
	// 259 "ex"
	// 83 "t"
	// 261 "<|endoftext|>"
	// the text<|endoftext|>
}
