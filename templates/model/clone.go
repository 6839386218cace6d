package model

import "encoding/json"

// Clone returns a copy that shares nothing with t. A nil t gives an empty template.
func (t *Template) Clone() *Template {
	out := &Template{Format: Version}
	if t == nil {
		return out
	}
	data, err := json.Marshal(t)
	if err == nil {
		err = json.Unmarshal(data, out)
	}
	if err != nil {
		panic("templates/model: a template has no JSON form: " + err.Error()) // only plain data is in it
	}
	return out
}
