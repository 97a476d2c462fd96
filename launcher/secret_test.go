package launcher

import (
	"bytes"
	"testing"
)

func TestEachUseOfASecretHasAKeyOfItsOwn(t *testing.T) {
	one, other := Start{Secret: []byte("one run's secret"), Rank: 1}, Start{Secret: []byte("another run's secret")}
	key := one.Key("collective")
	if !bytes.Equal(key, Start{Secret: one.Secret, Rank: 2}.Key("collective")) {
		t.Error("two ranks of a run have different keys")
	}
	for what, k := range map[string][]byte{"another use": one.Key("other"), "another run": other.Key("collective"), "the secret": one.Secret} {
		if len(key) < 16 || bytes.Equal(key, k) {
			t.Errorf("the key is short, or that of %s", what)
		}
	}
}
