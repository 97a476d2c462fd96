package launcher

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/gofsdp/gofsdp/record"
)

// secretHeader is the metadata by which an agent proves the secret.
const secretHeader = "gofsdp-secret"

// controlFormat is the version of the control file.
const controlFormat = 1

// control is what an agent must know to reach its launcher: a file of the run
// directory that only its owner reads, and that goes with the run.
type control struct {
	Format      int    `json:"format"`
	Address     string `json:"address"`
	Fingerprint string `json:"fingerprint"` // sha256 of the launcher's certificate, in hexadecimal
	Secret      string `json:"secret"`
}

// newControl returns a fresh secret, and a fresh key that serves under TLS.
func newControl() (control, tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return control{}, tls.Certificate{}, err
	}
	now := time.Now()
	// Nobody checks names or dates, as the fingerprint says it all.
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gofsdp"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return control{}, tls.Certificate{}, err
	}
	sum := sha256.Sum256(der)
	c := control{Format: controlFormat, Fingerprint: hex.EncodeToString(sum[:]), Secret: rand.Text()}
	return c, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func controlPath(dir string) string { return filepath.Join(dir, "control.json") }

func (c control) write(dir string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return record.WriteFileAtomic(controlPath(dir), append(text, '\n'), 0o600)
}

func readControl(path string) (c control, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("reading how to reach the launcher: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	if c.Format > controlFormat {
		return c, fmt.Errorf("%s has format %d, and this program knows %d: run the launcher's own version", path, c.Format, controlFormat)
	}
	return c, nil
}

// clientTLS trusts the one certificate with the fingerprint, whatever its name.
func (c control) clientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection checks more than names
		VerifyConnection: func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if !same(hex.EncodeToString(sum[:]), c.Fingerprint) {
				return errors.New("the launcher's key is not the run's own: somebody else listens at its address, or the control file is of another run")
			}
			return nil
		},
	}
}

// GetRequestMetadata and RequireTransportSecurity prove the secret with each call.
func (c control) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{secretHeader: c.Secret}, nil
}

func (control) RequireTransportSecurity() bool { return true }

// proven says whether a caller has shown the secret.
func (c control) proven(ctx context.Context) bool {
	shown := metadata.ValueFromIncomingContext(ctx, secretHeader)
	return len(shown) == 1 && same(shown[0], c.Secret)
}

// Key returns a key that the ranks of a run have alike and nobody else, for one
// use: who learns it learns neither the run's secret nor the keys of other uses.
func (s Start) Key(use string) []byte {
	h := hmac.New(sha256.New, s.Secret)
	h.Write([]byte("gofsdp/" + use))
	return h.Sum(nil)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
