// Package layertar writes layers of file trees, tar archives of foreign origin,
// into directories that overlayfs can show, and removes such directories. Begin
// with [Unpack]. It fetches nothing, and what it keeps of an archive is what a
// sandbox may have: no device, no set-uid bit, no extended attribute.
//
// Whoever made an archive controls every byte of it. So names and links lead
// nowhere but below the directory that is written, whatever they say, and
// counts and sizes have limits.
package layertar
