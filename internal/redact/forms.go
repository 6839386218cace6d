package redact

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// forms are the texts that give a secret away.
func forms(secret string) []string {
	raw := []string{
		secret,
		url.QueryEscape(secret), url.PathEscape(secret),
		quoted(strconv.Quote(secret)), quoted(strconv.QuoteToASCII(secret)),
	}
	if b, err := json.Marshal(secret); err == nil {
		raw = append(raw, quoted(string(b)))
	}
	if lower := lowerEscapes(raw[1]); lower != raw[1] {
		raw = append(raw, lower)
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for lead := range 3 {
			raw = append(raw, inBase64(enc, secret, lead))
		}
	}
	return slices.DeleteFunc(raw, func(s string) bool { return len(s) < minLength })
}

func quoted(s string) string { return s[1 : len(s)-1] }

// inBase64 is what the encoding of any text holds in which secret begins at an
// offset of lead, modulo 3: digits that depend on its neighbours are left out.
func inBase64(enc *base64.Encoding, secret string, lead int) string {
	digits := enc.EncodeToString([]byte(strings.Repeat("\x00", lead) + secret))
	first := (lead*8 + 5) / 6
	return digits[first : (lead+len(secret))*8/6]
}

// lowerEscapes spells percent escapes in lower case, as some clients do.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], strings.ToLower(string(b[i+1:i+3])))
		}
	}
	return string(b)
}
