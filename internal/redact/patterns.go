package redact

import (
	"regexp"
	"strings"
	"sync"
)

const accessKeyHeader = "x-acs-accesskey-id"

var secretHeaders = []string{
	"Authorization", "Proxy-Authorization", "X-API-KEY", "X-Access-Token", "X-Sandbox-Auth", "X-Sandbox-Token", "E2b-Traffic-Access-Token",
	"OPEN-SANDBOX-API-KEY", "X-EXECD-ACCESS-TOKEN", "X-FC-Security-Token", "x-acs-security-token", accessKeyHeader, "Cookie", "Set-Cookie",
}

func isSecretHeader(name string) bool {
	for _, h := range secretHeaders {
		if strings.EqualFold(h, name) {
			return true
		}
	}
	return false
}

// secretWords mark a JSON key or the key of a log attribute whose value is
// secret.
const secretWords = `secret|token|password|passwd|api_?-?key|apikeyvalue|authorization|private_?-? ?key|certificate_?-? ?key|access_?-?key`

// A pattern finds secrets by their form. The hints say in which texts it can be
// found at all, so that plain lines cost no expression.
type pattern struct {
	hints   []string // in lower case; nil: any text
	re      *regexp.Regexp
	replace string
}

// lazily is made at first use: programs that show nothing don't pay for it.
var lazily struct {
	once      sync.Once
	patterns  []pattern
	secretKey *regexp.Regexp
}

func compile() {
	lazily.patterns = allPatterns()
	lazily.secretKey = regexp.MustCompile(`(?i)` + secretWords)
}

func allPatterns() []pattern {
	var headers []string // of one word; the others take the rest of the line
	var hints []string
	for _, h := range secretHeaders {
		hints = append(hints, strings.ToLower(h))
		if !strings.Contains(hints[len(hints)-1], "authorization") && !strings.Contains(hints[len(hints)-1], "cookie") {
			headers = append(headers, regexp.QuoteMeta(h))
		}
	}
	return []pattern{
		{[]string{"-----begin"}, regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|$)`), Mask},
		// The user of a URL: everything up to the last @ of the authority.
		{[]string{"://"}, regexp.MustCompile(`(://)[^/?#\s"'<>]*@`), "${1}" + Mask + "@"},
		{[]string{"ltai"}, regexp.MustCompile(`LTAI[0-9A-Za-z]{12,}`), Mask},
		{[]string{"sts."}, regexp.MustCompile(`STS\.[0-9A-Za-z]{10,}`), Mask},
		{[]string{"e2b_"}, regexp.MustCompile(`e2b_[0-9a-fA-F]{20,}`), Mask},
		{[]string{"eyj"}, regexp.MustCompile(`eyJ[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*`), Mask},
		{[]string{"="}, regexp.MustCompile(`(?i)([?&;](?:x-fc-signature|x-fc-security-token|x-fc-access-key-id|signature|securitytoken|token|access_token|api_key|key)=)[^&#\s"'<>]*`), "${1}" + Mask},
		{hints, regexp.MustCompile(`(?i)\b((?:Proxy-)?Authorization|Set-Cookie|Cookie)(\\?"?\s*[:=]\s*)(?:\[[^\]]*\]|\\?"(?:[^"\\]|\\.)*"?|[^\r\n"\[][^\r\n"]*)`), "${1}${2}" + Mask},
		{hints, regexp.MustCompile(`(?i)\b(` + strings.Join(headers, "|") + `)(\\?"?\s*[:=]\s*)(?:\[[^\]]*\]|\\?"(?:[^"\\]|\\.)*"?|[^\s,;"\[]+)`), "${1}${2}" + Mask},
		{[]string{`"`}, regexp.MustCompile(`(?i)("[^"\\]{0,64}(?:` + secretWords + `)[^"\\]{0,64}"\s*:\s*)(?:"(?:[^"\\]|\\.)*"?|\[[^\]]*\]?)`), `${1}"` + Mask + `"`},
		// The same in JSON that was quoted in a text.
		{[]string{`\"`}, regexp.MustCompile(`(?i)(\\"[^"\\]{0,64}(?:` + secretWords + `)[^"\\]{0,64}\\"\s*:\s*)\\"[^"\\]*(?:\\")?`), `${1}\"` + Mask + `\"`},
	}
}

func patterns(text string) string {
	lazily.once.Do(compile)
	lower := strings.ToLower(text)
	for _, p := range lazily.patterns {
		for _, h := range p.hints {
			if strings.Contains(lower, h) {
				text = p.re.ReplaceAllString(text, p.replace)
				break
			}
		}
	}
	return text
}

// isSecretKey reports whether the value below a key of a log record is secret.
func isSecretKey(key string) bool {
	lazily.once.Do(compile)
	return isSecretHeader(key) || lazily.secretKey.MatchString(key)
}
