package sdktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// domain is where sandboxes have names in the tests with TLS. Resolvers need
// not know names below localhost, and node asks the system's, so the SDK runs
// with testdata/localhost.cjs, which answers for them.
const domain = "sandbox.localhost"

// startNamedGateway runs a gateway with TLS whose sandboxes have names of their
// own, and returns it with the E2B_DOMAIN and the certificate file for clients.
func startNamedGateway(t *testing.T) (g *gateway, name, caFile string) {
	t.Helper()
	dir := t.TempDir()
	cert, key, roots := certificate(t, dir)
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	name = net.JoinHostPort(domain, port)
	g = startGateway(t, "--listen", addr, "--domain", name, "--tls-cert", cert, "--tls-key", key)
	g.roots = roots
	return g, name, cert
}

// freeAddr returns a loopback address that nothing listens on, for servers that
// must know their port before they have it.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// certificate writes a certificate for all names of the domain, signed by
// itself, and its key.
func certificate(t *testing.T, dir string) (certFile, keyFile string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: domain},
		DNSNames:              []string{domain, "*." + domain},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile:  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(parsed)
	return certFile, keyFile, roots
}
