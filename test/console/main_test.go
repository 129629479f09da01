// Package console looks at the console as a person does: the built program serves
// it, real servers stand behind it, and a real browser without a window shows it.
package console

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9/logging"
)

// chromiumEnv is the variable that names the browser to use.
const chromiumEnv = "BRIDGE_TEST_CHROMIUM"

// built is the program, window is Chromium: both are shared by all tests.
var (
	built  once[string]
	window once[context.Context]
)

// once makes something the first time that it is asked for.
type once[T any] struct {
	sync.Once
	value T
	err   error
	end   func()
}

func (o *once[T]) get(t *testing.T, make func() (T, func(), error)) T {
	t.Helper()
	o.Do(func() { o.value, o.end, o.err = make() })
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.value
}

func (o *once[T]) close() {
	if o.end != nil {
		o.end()
	}
}

func TestMain(m *testing.M) {
	logging.Disable() // of the tests' own clients, while a test has their Redis down
	flag.Parse()
	// They wait for the page most of the time, so that more of them than there are
	// processors can share these.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(runtime.GOMAXPROCS(0) + 3))
	}
	code := m.Run()
	window.close()
	built.close()
	os.Exit(code)
}

// program builds the bridge once.
func program(t *testing.T) string {
	t.Helper()
	return built.get(t, func() (string, func(), error) {
		dir, err := os.MkdirTemp("", "bridge-console-")
		if err != nil {
			return "", nil, err
		}
		path := filepath.Join(dir, "bridge")
		build := exec.Command("go", "build", "-o", path, "./cmd/bridge")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("build: %w\n%s", err, out)
		}
		return path, func() { _ = os.RemoveAll(dir) }, nil
	})
}

// chromium starts the browser once. Where there is none the test is skipped, unless
// one was named.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path := os.Getenv(chromiumEnv)
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path != "" {
			break
		}
		path, _ = exec.LookPath(name)
	}
	if path == "" {
		t.Skip("the console is NOT TESTED in a browser, because Chromium is not installed (package chromium; `make chromium` installs it, or set " + chromiumEnv + ")")
	}
	return window.get(t, func() (context.Context, func(), error) {
		options := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
		options = append(options, chromedp.ExecPath(path), chromedp.WSURLReadTimeout(patience))
		if os.Geteuid() == 0 {
			options = append(options, chromedp.NoSandbox) // it refuses to run as root otherwise
		}
		allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(allocator)
		end := func() { cancel(); stop() }
		if err := chromedp.Do(ctx); err != nil {
			return nil, end, fmt.Errorf("start %s: %w", path, err)
		}
		return ctx, end, nil
	})
}
