package main

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed console
var consoleFiles embed.FS

// consolePolicy lets the page run its own files and speak to its own origin, and
// nothing else. Trusted Types make the browser refuse what would turn text into
// markup, wherever the page's own code might try to.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// consoleTypes are the kinds of files there are. The machine's own table of types
// is not asked: it may miss one, and the browser is told not to guess.
var consoleTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// consoleFile is a file of the page, as it is served.
type consoleFile struct {
	body            []byte
	mediaType, etag string
}

// consoleHandler serves the console: the page at /, what it loads under /console/,
// and 404 for anything else. It holds no data and asks for no token: the page gets
// what it shows from the API, with the token of the person in front of it.
func consoleHandler() http.Handler {
	files := readConsole()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", consolePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		f, ok := files[r.URL.Path]
		if !ok {
			http.Error(w, "There is no such page. The console is at /, the API under /v1/.", http.StatusNotFound)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "The console is read with GET.", http.StatusMethodNotAllowed)
			return
		}
		// The files change with the program: a browser asks each time, and is told
		// that what it has is good.
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.etag)
		h.Set("Content-Type", f.mediaType)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
	})
}

// readConsole returns the embedded files by the paths that they are served at.
func readConsole() map[string]consoleFile {
	files := map[string]consoleFile{}
	entries, _ := fs.ReadDir(consoleFiles, "console") // it is there, or nothing would have been built
	for _, e := range entries {
		mediaType := consoleTypes[path.Ext(e.Name())]
		body, err := consoleFiles.ReadFile("console/" + e.Name())
		if err != nil || mediaType == "" {
			continue
		}
		sum := sha256.Sum256(body)
		f := consoleFile{body: body, mediaType: mediaType, etag: `"` + hex.EncodeToString(sum[:12]) + `"`}
		if e.Name() == "index.html" {
			files["/"] = f
			continue
		}
		files["/console/"+e.Name()] = f
	}
	return files
}
