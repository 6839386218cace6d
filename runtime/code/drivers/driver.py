"""Runs cells of Python for the code interpreter.

Requests come as lines of JSON on descriptor 3, events leave as lines of JSON on
descriptor 4; descriptors 1 and 2 belong to the cells and what they start.
"""
import ast
import builtins
import json
import linecache
import os
import signal
import sys
import types

OWN = __file__
PID = os.getpid()
MAX_ROWS = 10_000
REPRS = {
    "_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png", "_repr_jpeg_": "image/jpeg", "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex", "_repr_json_": "application/json", "_repr_javascript_": "application/javascript",
}


def channel():
    """Takes the descriptors of the protocol out of the reach of children."""
    os.set_inheritable(3, False)
    os.set_inheritable(4, False)
    return os.fdopen(3, "rb", buffering=1 << 16), 4


def send(event, **fields):
    if os.getpid() != PID:  # a child made by fork has no say
        return
    line = memoryview((json.dumps({"event": event, **fields}, default=str) + "\n").encode())
    while line:
        line = line[os.write(EVENTS, line):]


class Cell:
    """The state of the cell that runs, and what all of them share."""

    id = None
    running = False
    loop = None
    count = 0


def on_interrupt(signum, frame):
    if Cell.running and os.getpid() == PID:
        Cell.running = False  # the first one ends the cell; the rest come too late
        raise KeyboardInterrupt


# Results


def encoded(value):
    if isinstance(value, (bytes, bytearray)):
        import base64

        return base64.b64encode(value).decode()
    return value


def bundle(obj):
    """All forms of obj, by their MIME type."""
    data = {}
    try:
        data["text/plain"] = repr(obj)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        data["text/plain"] = f"<{type(obj).__name__}: repr failed: {type(e).__name__}>"
    if type(obj) in (list, dict):
        try:
            data["application/json"] = json.loads(json.dumps(obj, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            pass
    if isinstance(obj, type):
        return data
    try:
        full = obj._repr_mimebundle_(include=None, exclude=None) if hasattr(obj, "_repr_mimebundle_") else None
        if isinstance(full, tuple):
            full = full[0]
        for mime, value in (full or {}).items():
            data[mime] = encoded(value)
    except Exception:
        pass
    for name, mime in REPRS.items():
        if mime in data and mime != "application/json":
            continue
        try:
            method = getattr(obj, name, None)
            value = method() if callable(method) else None
            if isinstance(value, tuple):  # with metadata
                value = value[0]
            if value is not None:
                data[mime] = encoded(value)
        except Exception:
            pass  # only this form is lost
    frame(obj, data)
    return data


def frame(obj, data):
    """Adds the columns of a data frame of pandas."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(obj, getattr(pandas, "DataFrame", ())) or len(obj) > MAX_ROWS:
        return
    try:
        columns = json.loads(obj.reset_index(drop=True).to_json(orient="split", date_format="iso"))
        data["e2b/data"] = {
            str(name): [row[i] for row in columns["data"]] for i, name in enumerate(columns["columns"])
        }
    except Exception:
        pass


def emit(data, main):
    send("result", id=Cell.id, main=main, data={k: v for k, v in data.items() if v is not None})


def display(*objs, **_):
    """Shows each of objs in the results of the cell."""
    for obj in objs:
        emit(bundle(obj), False)


def displayhook(value):
    if value is None:
        return
    ns = MAIN.__dict__
    ns["__"], ns["_"] = ns.get("_"), value
    ns["Out"][Cell.count] = value
    if "_sandbox_plots" in sys.modules and plots().pending(value):
        return  # shown with the others at the end
    emit(bundle(value), True)


# matplotlib


def plots():
    """The module beside this file that shows figures; it is loaded with matplotlib."""
    import importlib.util

    name = "_sandbox_plots"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(OWN), "plots.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.emit, module.encoded = emit, encoded
        sys.modules[name] = module
    return sys.modules[name]


def show_figures():
    if "_sandbox_plots" in sys.modules:
        plots().show_figures()


class PlotHook:
    """Prepares matplotlib when it is imported."""

    def find_spec(self, name, path, target=None):
        return plots().find_spec(name, path, target) if name in ("matplotlib", "matplotlib.pyplot") else None


# Cells


def pip(code):
    """The arguments of a lone "%pip install" or "!pip install", or None."""
    text = code.strip()
    if "\n" in text or not text.startswith(("%pip ", "!pip ", "!pip3 ", "%pip3 ")):
        return None
    import shlex

    return shlex.split(text)[1:]


def run_pip(args):
    import importlib
    import subprocess

    done = subprocess.run([sys.executable, "-m", "pip", *args])
    importlib.invalidate_caches()
    if done.returncode:
        raise SystemExit(f"pip ended with status {done.returncode}")


def compiled(code, name):
    """The statements, and the last expression on its own, as code objects."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    body = compile(tree, name, "exec", flags) if tree.body else None
    if last is None:
        return body, None, True
    return body, compile(last, name, "eval", flags), code.rstrip().endswith(";")


def evaluate(part):
    value = eval(part, MAIN.__dict__)
    if not part.co_flags & 0x80:  # inspect.CO_COROUTINE
        return value
    import asyncio

    if Cell.loop is None:
        Cell.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(Cell.loop)
    task = Cell.loop.create_task(value)
    try:
        return Cell.loop.run_until_complete(task)
    except KeyboardInterrupt:
        task.cancel()
        Cell.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        raise


def execute(code):
    name = f"<cell {Cell.count}>"
    linecache.cache[name] = (len(code), None, [line + "\n" for line in code.splitlines()], name)
    args = pip(code)
    if args is not None:
        return run_pip(args)
    if code[:1] in ("%", "!"):
        raise SyntaxError(
            "magics and ! are not part of Python: run commands with subprocess, or with the command API of the sandbox")
    body, last, silent = compiled(code, name)
    if body is not None:
        evaluate(body)
    if last is not None:
        value = evaluate(last)
        if not silent:
            displayhook(value)
    show_figures()


def report(exc):
    """Sends an exception, without the frames that are ours."""
    import traceback

    seen = set()

    def strip(te):
        if te is None or id(te) in seen:
            return
        seen.add(id(te))
        first = next((i for i, f in enumerate(te.stack) if f.filename.startswith("<cell ")), None)
        frames = te.stack[first:] if first is not None else te.stack
        te.stack = traceback.StackSummary.from_list([f for f in frames if f.filename != OWN])
        strip(te.__cause__)
        strip(te.__context__)
        for sub in getattr(te, "exceptions", None) or ():
            strip(sub)

    te = traceback.TracebackException.from_exception(exc, compact=True)
    strip(te)
    try:
        value = str(exc)
    except Exception:
        value = "<str failed>"
    lines = "".join(te.format()).rstrip("\n").split("\n")
    send("error", id=Cell.id, name=type(exc).__name__, value=value, traceback=lines)


def run(req):
    Cell.id = req["id"]
    Cell.count += 1
    send("count", id=Cell.id, n=Cell.count)
    before = {}
    for key, value in (req.get("env") or {}).items():
        before[key] = os.environ.get(key)
        os.environ[key] = value
    try:
        try:
            Cell.running = True
            execute(req["code"])
            Cell.running = False
        except BaseException as e:
            Cell.running = False
            report(e)
    except KeyboardInterrupt as e:  # between the two lines above
        report(e)
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is not None and hasattr(plt, "close"):
        plt.close("all")  # what a failed cell left
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
            mark = req.get("marker", "").encode()
            while mark:
                mark = mark[os.write(fd, mark):]
        except Exception:
            pass  # the cell has closed it
    send("end", id=Cell.id)


def main():
    global REQUESTS, EVENTS, MAIN
    REQUESTS, EVENTS = channel()
    signal.signal(signal.SIGINT, on_interrupt)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=True)
    MAIN = types.ModuleType("__main__")
    MAIN.__dict__.update(__builtins__=builtins, display=display, Out={})
    sys.modules["__main__"] = MAIN
    sys.argv, sys.path[0] = [""], ""
    sys.meta_path.insert(0, PlotHook())
    send("ready", pid=PID, version=sys.version.split()[0], language="python")
    for line in iter(REQUESTS.readline, b""):
        req = json.loads(line)
        if req["op"] == "run":
            run(req)
        elif req["op"] == "ping":
            send("end", id=req["id"])
        else:
            break


main()
