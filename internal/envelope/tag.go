package envelope

import (
	"reflect"
	"strings"
)

// A TagItem is one item of a sandbox tag: key, or key=value.
type TagItem struct{ Key, Value string }

// TagItems cuts the sandbox tag of a field into its items. They are joined by
// commas; a value in single quotes may hold some. The tool that generates code
// has refused tags that are not well formed, so what is malformed is taken as
// it comes.
func TagItems(tag reflect.StructTag) []TagItem {
	text := tag.Get("sandbox")
	var items []TagItem
	for text != "" {
		var it TagItem
		end := strings.IndexAny(text, ",=")
		if end < 0 {
			end = len(text)
		}
		it.Key, text = strings.TrimSpace(text[:end]), text[end:]
		if rest, ok := strings.CutPrefix(text, "="); ok {
			if quoted, ok := strings.CutPrefix(rest, "'"); ok {
				it.Value, text, _ = strings.Cut(quoted, "'")
			} else {
				end := strings.IndexByte(rest, ',')
				if end < 0 {
					end = len(rest)
				}
				it.Value, text = rest[:end], rest[end:]
			}
		}
		items = append(items, it)
		text = strings.TrimPrefix(text, ",")
	}
	return items
}
