package httpapi

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
)

// object is a JSON object; package json sorts its keys.
type object = map[string]any

// OpenAPI describes rows as an OpenAPI 3.1 document that package json can
// write. GET /health, which is older than the API, is part of it.
func OpenAPI(rows []endpoint.Endpoint) map[string]any {
	s := schemas{}
	paths := object{"/health": object{"get": object{
		"operationId": "core.health", "tags": []string{"core"}, "security": []any{},
		"summary":   "Whether the server runs.",
		"responses": object{"204": object{"description": "It does."}},
	}}}
	ids := map[string]bool{}
	for _, row := range rows {
		path := variable().ReplaceAllString(row.Path, "{$1}")
		item, _ := paths[path].(object)
		if item == nil {
			item = object{}
			paths[path] = item
		}
		op := s.operation(row)
		id := row.Name
		if ids[id] { // rows that are switched together share a name
			id += "_" + strings.ReplaceAll(path[strings.LastIndexByte(path, '/')+1:], "-", "_")
		}
		ids[id] = true
		op["operationId"] = id
		item[strings.ToLower(row.Method)] = op
	}
	s["Error"] = object{
		"type": "object", "required": []string{"code", "message"},
		"properties": object{
			"code":    object{"type": "integer", "description": "the status"},
			"message": object{"type": "string"},
		},
	}
	return object{
		"openapi": "3.1.0",
		"info":    object{"title": "Sandbox runtime", "version": Version},
		"paths":   paths,
		"components": object{
			"schemas": map[string]any(s),
			"securitySchemes": object{
				"bearer": object{"type": "http", "scheme": "bearer"},
				"header": object{"type": "apiKey", "in": "header", "name": "X-Sandbox-Token"},
			},
			"responses": object{"Error": object{
				"description": "Refused. The header Sandbox-Error-Code has the code of docs/errors.md, where there is one.",
				"headers":     object{"Sandbox-Error-Code": object{"schema": object{"type": "string"}}},
				"content":     object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Error"}}},
			}},
			"parameters": object{"User": object{
				"name": UserHeader, "in": "header", "schema": object{"type": "string"},
				"description": "the user to act as; without it the default user of the sandbox",
			}},
		},
		"security": []any{object{"bearer": []any{}}, object{"header": []any{}}},
	}
}

// variable is one of a path pattern, with or without an expression.
var variable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\{([a-z_]+)(?::[^{}]*(?:\{[^{}]*\}[^{}]*)*)?\}`)
})

func (s schemas) operation(row endpoint.Endpoint) object {
	group, _, _ := strings.Cut(row.Name, ".")
	op := object{"tags": []string{group}, "summary": row.Summary}
	if row.Open {
		op["security"] = []any{}
	}
	parameters := []any{object{"$ref": "#/components/parameters/User"}}
	for _, m := range variable().FindAllStringSubmatch(row.Path, -1) {
		parameters = append(parameters, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range row.Query {
		schema := object{"type": p.Type}
		if p.Default != "" {
			schema["default"] = typed(p.Default, p.Type)
		}
		parameters = append(parameters, object{"name": p.Name, "in": "query", "required": p.Required, "schema": schema, "description": p.Summary})
	}
	op["parameters"] = parameters
	content := object{}
	if row.Request != nil {
		content["application/json"] = object{"schema": s.of(reflect.TypeOf(row.Request), true)}
	}
	if row.Accepts != "" {
		content[row.Accepts] = object{"schema": object{}}
	}
	if len(content) > 0 {
		op["requestBody"] = object{"content": content}
	}
	op["responses"] = s.responses(row)
	return op
}

func (s schemas) responses(row endpoint.Endpoint) object {
	ok := object{"description": "Done."}
	content := object{}
	if row.Response != nil {
		content["application/json"] = object{"schema": s.of(reflect.TypeOf(row.Response), false)}
	}
	if row.Produces != "" {
		content[row.Produces] = object{"schema": object{}}
	}
	if len(content) > 0 {
		ok["content"] = content
	}
	out := object{"default": object{"$ref": "#/components/responses/Error"}}
	if row.Produces == webSocket {
		out["101"] = object{"description": "The connection is a WebSocket."}
	} else {
		out["200"] = ok
	}
	texts := map[int][]string{}
	for _, e := range row.Errors {
		text := e.Summary
		if e.Code != "" {
			text = e.Code + ": " + text
		}
		texts[e.Status] = append(texts[e.Status], text)
	}
	for status, text := range texts {
		out[strconv.Itoa(status)] = object{
			"description": strings.Join(text, "; "),
			"content":     object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Error"}}},
		}
	}
	return out
}

// webSocket is what rows say that change the protocol.
const webSocket = "websocket"

// schemas are the components that types refer to, by name.
type schemas map[string]any

// of is the schema of t. In a request, a field is required that says so; in an
// answer, one that is always written.
func (s schemas) of(t reflect.Type, request bool) object {
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem(), request)
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem(), request)}
	case reflect.Slice, reflect.Array:
		switch {
		case t.PkgPath() == "encoding/json": // RawMessage
			return object{}
		case t.Elem().Kind() == reflect.Uint8:
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": s.of(t.Elem(), request)}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return object{"type": "string", "format": "date-time"}
		}
		if t.Name() == "" {
			return s.structure(t, request)
		}
		name := t.Name()
		if i := strings.LastIndexByte(t.PkgPath(), '/'); !strings.HasSuffix(t.PkgPath(), "/httpapi") {
			name = t.PkgPath()[i+1:] + "." + name
		}
		if _, known := s[name]; !known {
			s[name] = nil // it may hold itself
			s[name] = s.structure(t, request)
		}
		return object{"$ref": "#/components/schemas/" + name}
	}
	return object{} // any value
}

func (s schemas) structure(t reflect.Type, request bool) object {
	properties, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		schema := s.of(f.Type, request)
		for key, tag := range map[string]string{"description": "doc", "default": "default"} {
			if v := f.Tag.Get(tag); v != "" {
				kind, _ := schema["type"].(string)
				schema[key] = v
				if tag == "default" {
					schema[key] = typed(v, kind)
				}
			}
		}
		if v := f.Tag.Get("enum"); v != "" {
			schema["enum"] = strings.Split(v, ",")
		}
		properties[name] = schema
		optional := strings.Contains(opts, "omit")
		if request && f.Tag.Get("required") != "" || !request && !optional {
			required = append(required, name)
		}
	}
	out := object{"type": "object", "properties": properties}
	if request {
		out["additionalProperties"] = false
	}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

// typed is a value in text as JSON has it.
func typed(text, kind string) any {
	switch kind {
	case "integer", "number":
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return f
		}
	case "boolean":
		return text == "true"
	}
	return text
}
