"""Shows figures of matplotlib: as pictures, and as charts with their titles, labels,
ticks and points. driver.py loads it, and gives it emit and encoded."""
import math
import os
import sys

DEBIAN_RC = "/usr/share/matplotlib/mpl-data/matplotlibrc"


def find_spec(name, path, target):
    """Finds a module of matplotlib, and prepares it for cells."""
    import importlib.machinery

    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec is None or spec.loader is None:
        return spec
    run = spec.loader.exec_module
    # Debian's package keeps its settings in /etc, which a sandbox need not have.
    if not os.path.exists("/etc/matplotlibrc") and os.path.exists(DEBIAN_RC):
        os.environ.setdefault("MATPLOTLIBRC", DEBIAN_RC)

    def exec_module(module):
        run(module)
        if name == "matplotlib.pyplot":
            module.show = show_figures
        elif not os.environ.get("MPLBACKEND"):
            module.rcParams["backend"] = "agg"

    spec.loader.exec_module = exec_module
    return spec


def pending(value):
    """Whether value is a figure that show_figures will show."""
    figures, plt = sys.modules.get("matplotlib.figure"), sys.modules.get("matplotlib.pyplot")
    if figures is None or plt is None or not isinstance(value, figures.Figure):
        return False
    return any(plt.figure(n) is value for n in plt.get_fignums())


def show_figures(*_, **__):
    """Shows and closes all open figures."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or not hasattr(plt, "get_fignums"):
        return
    for n in plt.get_fignums():
        fig = plt.figure(n)
        try:
            import io

            picture = io.BytesIO()
            fig.savefig(picture, format="png", dpi=100, bbox_inches="tight")
            data = {"text/plain": repr(fig), "image/png": encoded(picture.getvalue())}
            chart = describe(fig)
            if chart is not None:
                data["e2b/chart"] = chart
            emit(data, False)
        finally:
            plt.close(fig)


def describe(fig):
    """The chart of fig, or None when some of it is of another kind."""
    found = [chart for chart in (axes(ax) for ax in fig.axes if ax.get_visible()) if chart is not False]
    if not found or None in found:
        return None
    if len(found) == 1:
        return found[0]
    title = fig._suptitle.get_text() if getattr(fig, "_suptitle", None) else ""
    return {"type": "superchart", "title": title, "elements": found}


def axes(ax):
    """The chart of one pair of axes; None: of another kind, False: empty."""
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    bars = [c for c in ax.containers if isinstance(c, BarContainer)]
    wedges = [p for p in ax.patches if isinstance(p, Wedge)]
    points = [c for c in ax.collections if isinstance(c, PathCollection)]
    lines = [line for line in ax.lines if len(line.get_xdata())]
    others = len(ax.collections) - len(points) + len(ax.images)
    patches = len(ax.patches) - len(wedges) - sum(len(b.patches) for b in bars)
    if others or len(ax.containers) != len(bars):
        return None
    if wedges:
        return pie(ax, wedges) if not (bars or points or lines or patches) else None
    if bars:
        return bar(ax, bars) if not (points or patches) else None
    if points:
        return scatter(ax, points) if not (lines or patches) else None
    if lines:
        if boxed(lines) or patches:
            return box(ax, lines)
        return line_chart(ax, lines)
    return False if not patches else None


def plain(value):
    """A value that JSON has."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
        if hasattr(value, "isoformat"):
            return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (int, float, str, type(None))) else str(value)


def unit(label):
    """What stands in brackets at the end of a label."""
    label = label.strip()
    if label.endswith(")") and "(" in label:
        return label[label.rindex("(") + 1:-1]
    return None


def flat(ax, kind, elements):
    x, y = ax.get_xlabel(), ax.get_ylabel()
    return {
        "type": kind, "title": ax.get_title(), "elements": elements,
        "x_label": x, "y_label": y, "x_unit": unit(x), "y_unit": unit(y),
    }


def pointed(ax, kind, elements):
    chart = flat(ax, kind, elements)
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        chart[name + "_ticks"] = [plain(t) for t in axis.get_ticklocs()]
        chart[name + "_tick_labels"] = [t.get_text() for t in axis.get_ticklabels()]
        chart[name + "_scale"] = scale(axis)
    return chart


def scale(axis):
    units = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
    if "Date" in units:
        return "datetime"
    if "Category" in units:
        return "categorical"
    return axis.get_scale()


def pairs(ax, xs, ys):
    """Points, with dates and names in place of the numbers that stand for them."""
    def back(axis, value):
        if scale(axis) == "datetime" and isinstance(value, (int, float)):
            from matplotlib.dates import num2date

            return num2date(value).isoformat()
        if scale(axis) == "categorical" and axis.units is not None and not isinstance(value, str):
            names = {number: name for name, number in axis.units._mapping.items()}
            return names.get(value, value)
        return plain(value)

    return [[back(ax.xaxis, plain(x)), back(ax.yaxis, plain(y))] for x, y in zip(xs, ys)]


def labelled(artist, i):
    label = str(artist.get_label())
    return f"Series {i}" if not label or label.startswith("_") else label


def line_chart(ax, lines):
    return pointed(ax, "line", [
        {"label": labelled(line, i), "points": pairs(ax, line.get_xdata(), line.get_ydata())}
        for i, line in enumerate(lines)
    ])


def scatter(ax, groups):
    return pointed(ax, "scatter", [
        {"label": labelled(g, i), "points": pairs(ax, *zip(*g.get_offsets().tolist())) if len(g.get_offsets()) else []}
        for i, g in enumerate(groups)
    ])


def bar(ax, groups):
    elements = []
    for i, group in enumerate(groups):
        vertical = getattr(group, "orientation", "vertical") != "horizontal"
        axis = ax.xaxis if vertical else ax.yaxis
        names = {round(float(at), 6): label.get_text() for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels())}
        for patch in group.patches:
            at = patch.get_x() + patch.get_width() / 2 if vertical else patch.get_y() + patch.get_height() / 2
            value = patch.get_height() if vertical else patch.get_width()
            elements.append({
                "label": names.get(round(float(at), 6)) or str(plain(at)),
                "value": plain(value), "group": labelled(group, i),
            })
    return flat(ax, "bar", elements)


def pie(ax, wedges):
    return {"type": "pie", "title": ax.get_title(), "elements": [
        {"label": str(w.get_label()), "angle": plain(w.theta2 - w.theta1), "radius": plain(w.r)} for w in wedges
    ]}


def boxed(lines):
    """Whether the lines are those of boxplot: a closed box of five points among them."""
    return any(len(line.get_xdata()) == 5 and line.get_xdata()[0] == line.get_xdata()[-1]
               and line.get_ydata()[0] == line.get_ydata()[-1] for line in lines)


def box(ax, lines):
    """Standing boxes, each with two whiskers, two caps, a median and points that lie out."""
    boxes = [line for line in lines if len(line.get_xdata()) == 5]
    if not boxes or len(ax.patches):
        return None
    names = {round(float(at), 6): label.get_text() for at, label in zip(ax.get_xticks(), ax.get_xticklabels())}
    elements = []
    for b in boxes:
        xs, ys = [float(x) for x in b.get_xdata()], [float(y) for y in b.get_ydata()]
        left, right, low, high = min(xs), max(xs), min(ys), max(ys)
        inside = [line for line in lines if line is not b and all(left <= float(x) <= right for x in line.get_xdata())]
        flat_ones = [float(line.get_ydata()[0]) for line in inside
                     if len(line.get_ydata()) == 2 and line.get_ydata()[0] == line.get_ydata()[1]
                     and line.get_xdata()[0] != line.get_xdata()[1]]
        median = next((float(line.get_ydata()[0]) for line in inside if len(line.get_xdata()) == 2
                       and sorted(float(x) for x in line.get_xdata()) == [left, right]), None)
        outliers = [plain(y) for line in inside if line.get_linestyle() == "None" for y in line.get_ydata()]
        at = (left + right) / 2
        elements.append({
            "label": names.get(round(at, 6)) or str(at), "min": min([low, *flat_ones]), "first_quartile": low,
            "median": median, "third_quartile": high, "max": max([high, *flat_ones]), "outliers": outliers,
        })
    return flat(ax, "box_and_whisker", elements)
