"""The manager's rules: one plugin is one transaction, and a broken one stops nothing else."""

from __future__ import annotations

import importlib.metadata
import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import specdec.plugins.manager as manager_module
from specdec.core.config import load_config
from specdec.core.errors import PluginError, PluginLoadWarning, UnknownStrategyError
from specdec.plugins import Strategy, hookimpl
from specdec.plugins.manager import PluginManager, discover, use
from specdec.plugins.registry import BUILTIN


def strategy(name: str = "acme", role: str = "drafter", api: int = 1, **changes: str) -> Strategy:
    values = {"config": "acme_config:AcmeConfig", "build": "acme_parts:Acme.from_config", **changes}
    return Strategy(role=role, name=name, api=api, **values)  # type: ignore[arg-type]


def plugin(name: str, *strategies: Strategy, **hooks: object) -> types.ModuleType:
    module = types.ModuleType(name)

    @hookimpl
    def specdec_strategies():
        return strategies

    module.specdec_strategies = specdec_strategies
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def the_record(manager: PluginManager, name: str):
    return next(record for record in manager.records if record.name == name)


def test_builtins_come_through_the_hook_and_are_recorded():
    manager = PluginManager()
    record = the_record(manager, BUILTIN)
    assert record.state == "loaded" and record.dist == "specdec-hf"
    assert set(record.strategies) >= {
        "drafter/none", "drafter/prompt-lookup", "drafter/draft-model",
        "verifier/token", "verifier/block", "verifier/walk", "verifier/greedy",
        "scheduler/fixed", "scheduler/adaptive", "target/hf",
    }  # fmt: skip
    assert manager.registry.names("scheduler") == ("adaptive", "fixed")


def test_a_good_plugin_adds_its_strategies():
    manager = PluginManager.from_modules([plugin("good", strategy("acme"), strategy("acme", "verifier"))])
    assert the_record(manager, "good").strategies == ("drafter/acme", "verifier/acme")
    assert manager.registry.get("drafter", "acme").build == "acme_parts:Acme.from_config"
    assert manager.registry.owner("drafter", "acme") == "good"
    assert manager.registry.origin("drafter", "acme") == "plugin 'good'"


def raising(error: BaseException):
    def specdec_strategies():
        raise error

    return specdec_strategies


def misspelt() -> types.ModuleType:
    return plugin("broken", strategy("lost"), specdec_strategys=lambda: [])


def wrong_signature() -> types.ModuleType:
    return plugin("broken", strategy("lost"), specdec_round=lambda event: None)


def not_hooks() -> types.ModuleType:
    module = types.ModuleType("broken")
    module.specdec_strategies = lambda: [strategy("lost")]
    return module


BROKEN = {
    "hook raises": (
        lambda: plugin("broken", specdec_strategies=raising(OSError("no disk"))),
        "OSError: no disk",
    ),
    "hook exits": (lambda: plugin("broken", specdec_strategies=raising(SystemExit(3))), "SystemExit: 3"),
    "misspelt hook": (misspelt, "unknown hook 'specdec_strategys'"),
    "wrong argument": (wrong_signature, "event"),
    "no hook": (not_hooks, "implements no hook of specdec"),
    "newer api": (lambda: plugin("broken", strategy("lost", api=2)), "plugin API 2.*upgrade specdec-hf"),
    "older api": (lambda: plugin("broken", strategy("lost", api=0)), "plugin API 0.*upgrade the plugin"),
    "twice": (lambda: plugin("broken", strategy("lost"), strategy("lost")), "drafter 'lost' twice"),
    "not strategies": (lambda: plugin("broken", "lost"), "returned 'lost'; expected Strategy"),
    "forgotten return": (
        lambda: plugin("broken", specdec_strategies=lambda: None),
        r"returned None; expected a list of Strategy",
    ),
    "not iterable": (
        lambda: plugin("broken", specdec_strategies=lambda: strategy("lost")),
        "TypeError",
    ),
    "taken built-in": (
        lambda: plugin("broken", strategy("lost"), strategy("prompt-lookup")),
        "plugin 'broken' gives drafter 'prompt-lookup', but that name belongs to specdec itself.*reserved",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_leaves_only_its_record(case):
    make, message = BROKEN[case]
    with pytest.warns(PluginLoadWarning, match=message) as caught:
        manager = PluginManager.from_modules([make(), plugin("good", strategy("acme"))])
    assert len(caught) == 1
    record = the_record(manager, "broken")
    assert record.state == "failed" and record.error and record.strategies == ()
    assert "lost" not in manager.registry.names("drafter")
    assert the_record(manager, "good").state == "loaded"
    assert [name for name, _ in manager._plugins.list_name_plugin()] == [BUILTIN, "good"]
    assert not manager.observes_rounds
    # A later plugin is checked on its own: what the broken one left must not count against it.
    assert manager.register(plugin("later", strategy("later"))).state == "loaded"


@pytest.mark.parametrize("case", BROKEN)
def test_strict_raises(case):
    make, message = BROKEN[case]
    with pytest.raises(PluginError, match=message):
        PluginManager.from_modules([make()], strict=True)


def test_a_plugin_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "specdec_unimportable.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(PluginLoadWarning, match="a_module_that_is_not_there"):
        manager = PluginManager.from_modules(["specdec_unimportable"])
    assert the_record(manager, "specdec_unimportable").state == "failed"


def test_two_plugins_want_one_name():
    first, second = plugin("first", strategy("acme")), plugin("second", strategy("acme"), strategy("other"))
    with pytest.warns(PluginLoadWarning, match=r"plugin 'second' gives.*belongs to plugin 'first'"):
        manager = PluginManager.from_modules([first, second])
    assert manager.registry.owner("drafter", "acme") == "first"
    assert "other" not in manager.registry.names("drafter")


def test_one_plugin_name_has_one_owner_and_one_module_one_name():
    good = plugin("good", strategy("acme"))
    manager = PluginManager.from_modules([good])
    with pytest.warns(PluginLoadWarning, match="its plugin name belongs to plugin 'good'"):
        manager.register(plugin("good", strategy("other")), dist="other-dist", version="2")
    with pytest.warns(PluginLoadWarning, match="loaded already, as plugin 'good'"):
        manager.register(good, name="again")
    with pytest.warns(PluginLoadWarning, match="belongs to specdec itself.*reserved"):
        manager.register(plugin("x", strategy("x")), name=BUILTIN, dist="impostor", version="1")
    assert manager.registry.owner("drafter", "acme") == "good"
    assert manager.registry.owner("drafter", "none") == BUILTIN
    assert len(manager.records) == 5


def test_unknown_name_says_what_could_have_been_meant_and_what_failed():
    with pytest.warns(PluginLoadWarning):
        manager = PluginManager.from_modules([plugin("broken", specdec_strategies=raising(OSError("no disk")))])
    with pytest.raises(UnknownStrategyError) as caught:
        manager.registry.get("drafter", "promt-lookup")
    text = str(caught.value)
    assert "unknown drafter 'promt-lookup'" in text and "Did you mean 'prompt-lookup'?" in text
    assert f"Known: {', '.join(manager.registry.names('drafter'))}." in text
    assert "Plugins not loaded: plugin 'broken' (OSError: no disk)" in text
    assert isinstance(caught.value, ValueError)
    with pytest.raises(UnknownStrategyError, match="'fixed' is a scheduler"):
        manager.registry.get("drafter", "fixed")


def test_find_takes_a_name_or_role_and_name():
    registry = PluginManager.from_modules([plugin("good", strategy("walk"))]).registry
    assert registry.find("fixed").key == "scheduler/fixed"
    assert registry.find("verifier/walk").role == "verifier"
    with pytest.raises(ValueError, match="write one of drafter/walk, verifier/walk"):
        registry.find("walk")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": "guesser"}, "role 'guesser'; expected one of drafter"),
        ({"name": "Acme:1"}, "name 'Acme:1'; expected lower-case"),
        ({"config": "acme_config"}, "config is 'acme_config'; expected a text 'package.module:attribute'"),
        ({"build": "a.b:c:d"}, "build is 'a.b:c:d'"),
        ({"example": "nowhere"}, "example is 'nowhere'"),
    ],
)
def test_a_strategy_is_checked_when_it_is_made(changes, message):
    with pytest.raises(PluginError, match=message):
        strategy(**changes)


def test_references_are_imported_on_use_and_checked():
    with pytest.raises(PluginError, match=r"drafter 'acme': config 'acme_config:AcmeConfig' cannot be loaded: Modu"):
        strategy().load_config()
    with pytest.raises(PluginError, match=r"expected a subclass of specdec\.plugins\.StrategyConfig"):
        strategy(config="json:dumps").load_config()
    with pytest.raises(PluginError, match="has the default 'fixed'; expected 'acme'"):
        strategy(config="specdec.schedulers.fixed_config:FixedConfig").load_config()
    with pytest.raises(PluginError, match="expected a callable"):
        strategy(build="math:pi").load_build()
    with pytest.raises(PluginError, match="has no example"):
        strategy().load_example()
    assert strategy(build="builtins:dict.fromkeys").load_build()("ab") == {"a": None, "b": None}


def test_what_a_builder_raises_keeps_its_type():
    from specdec.schedulers.fixed_config import FixedConfig

    with pytest.raises(TypeError) as caught:
        strategy(build="math:sqrt").create(FixedConfig())
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["while building drafter 'acme' through math:sqrt"]


def test_observers_see_rounds_and_a_failing_one_is_switched_off_once():
    seen: list[object] = []

    def fails(info):
        raise RuntimeError("full")

    manager = PluginManager.from_modules(
        [
            plugin("bad", specdec_round=fails),
            plugin("good", specdec_round=lambda info: seen.append(info)),
            plugin("idle", specdec_round=lambda: seen.append("no argument")),
        ]
    )
    assert manager.observes_rounds
    with pytest.warns(PluginLoadWarning, match="plugin 'bad'.*RuntimeError: full") as caught:
        for number in range(3):
            manager.observe_round(number)
    assert len(caught) == 1
    assert sorted(map(str, seen)) == ["0", "1", "2", *["no argument"] * 3]
    record = the_record(manager, "bad")
    assert record.state == "loaded" and "switched off" in record.error


class Point:
    """Stands for an entry point without an installed distribution."""

    def __init__(self, name, dist, load, version="1.0"):
        self.name, self.load = name, load
        self.dist = types.SimpleNamespace(name=dist, version=version)


def points(*loaded: str) -> list[Point]:
    def point(name: str) -> Point:
        def load():
            loaded_now.append(name)
            return plugin(name, strategy(name))

        return Point(name, f"{name}-dist", load)

    loaded_now: list[str] = []
    made = [point(name) for name in loaded]
    made[0].log = loaded_now
    return made


def test_allow_list_by_name_or_distribution_and_missing_names():
    manager, entry_points = PluginManager(), points("c", "b", "a")
    manager.load_entry_points(entry_points, allow={"a", "b-dist", "z"})
    with pytest.warns(PluginLoadWarning, match="plugin 'z' is missing"):
        manager.report()
    assert entry_points[0].log == ["a", "b"]
    assert {record.name: record.state for record in manager.records} == {
        BUILTIN: "loaded", "a": "loaded", "b": "loaded", "c": "skipped", "z": "missing",
    }  # fmt: skip
    with pytest.raises(UnknownStrategyError, match="SPECDEC_PLUGINS does not list it"):
        manager.registry.get("drafter", "c")


def test_failures_name_distribution_and_version():
    def fails():
        raise ImportError("libfoo")

    manager = PluginManager()
    manager.load_entry_points([Point("acme", "acme-dist", fails, "0.3")])
    with pytest.warns(PluginLoadWarning, match=r"plugin 'acme' \(acme-dist 0.3\) failed.*ImportError: libfoo"):
        manager.report()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.report()


@pytest.fixture
def environment(monkeypatch):
    """Sets the variables and the installed entry points, and forgets the manager of the process."""

    def set_up(entry_points, **variables):
        for name in ("SPECDEC_PLUGINS", "SPECDEC_STRICT_PLUGINS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(manager_module, "_current", None)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: entry_points)

    return set_up


def test_environment_allow_list(environment):
    environment(points("a", "b"), SPECDEC_PLUGINS="")
    assert [record.state for record in discover().records] == ["loaded", "skipped", "skipped"]
    environment(points("a", "b"), SPECDEC_PLUGINS=" b ,")
    assert [record.name for record in discover().records if record.state == "loaded"] == [BUILTIN, "b"]
    environment(points("a", "b"))
    assert all(record.state == "loaded" for record in discover().records)


def test_environment_strict(environment):
    broken = Point("broken", "broken-dist", lambda: plugin("broken", strategy("none")))
    environment([broken], SPECDEC_STRICT_PLUGINS="1")
    with pytest.raises(PluginError, match="belongs to specdec itself"):
        discover()
    environment([broken], SPECDEC_STRICT_PLUGINS="0")
    with pytest.warns(PluginLoadWarning, match="belongs to specdec itself") as caught:
        discover()
        discover()
    assert len(caught) == 1
    environment([], SPECDEC_STRICT_PLUGINS="1", SPECDEC_PLUGINS="gone")
    with pytest.raises(PluginError, match="plugin 'gone' is missing"):
        discover()


def test_discover_loads_once_for_all_threads(environment):
    entry_points = points("a")
    environment(entry_points)
    found: list[PluginManager] = []
    threads = [threading.Thread(target=lambda: found.append(discover())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(manager) for manager in found}) == 1 and entry_points[0].log == ["a"]


def test_a_plugin_that_asks_for_strategies_while_it_loads_fails_alone(environment):
    def load():
        load_config({"drafter": "none"})

    environment([Point("eager", "eager-dist", load)])
    with pytest.warns(PluginLoadWarning, match="may only declare strategies"):
        manager = discover()
    assert the_record(manager, "eager").state == "failed"
    assert load_config({"drafter": "none"}).drafter.type == "none"


def test_a_plugin_is_found_through_an_installed_distribution(tmp_path, monkeypatch):
    info = tmp_path / "specdec_suffix-0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-suffix\nVersion: 0.2\n")
    (info / "entry_points.txt").write_text("[specdec]\nsuffix = specdec_suffix_hooks\n")
    Path(tmp_path / "specdec_suffix_hooks.py").write_text(
        "from specdec.plugins import Strategy, hookimpl\n"
        "@hookimpl\n"
        "def specdec_strategies():\n"
        "    return [Strategy('drafter', 'suffix', 'suffix_config:C', 'suffix_parts:D', api=1)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(manager_module, "_current", None)
    monkeypatch.setenv("SPECDEC_PLUGINS", "suffix")
    record = the_record(discover(), "suffix")
    assert (record.dist, record.version, record.state) == ("specdec-suffix", "0.2", "loaded")
    assert record.strategies == ("drafter/suffix",)
    with pytest.raises(ValueError, match="drafter: drafter 'suffix': config 'suffix_config:C' cannot be loaded"):
        load_config({"drafter": "suffix"})


def test_required_plugins_are_compared_with_what_is_loaded():
    manager = PluginManager()
    manager.register(plugin("acme", strategy("acme")), dist="specdec-acme", version="1.2")
    manager.register(plugin("bare", strategy("bare")))
    with pytest.warns(PluginLoadWarning):
        manager.register(plugin("broken", strategy("none")), dist="specdec-broken", version="9")
    assert manager.unmet(Requirement("specdec_acme>=1")) is None
    assert manager.unmet(Requirement("acme")) is None
    assert "does not satisfy 'acme>=2'" in manager.unmet(Requirement("acme>=2"))
    assert "has no version" in manager.unmet(Requirement("bare>=1"))
    assert "is not loaded: PluginError" in manager.unmet(Requirement("specdec-broken"))
    assert "not installed; install it: pip install 'gone>=1'" in manager.unmet(Requirement("gone>=1"))
    with use(manager):
        assert load_config({"drafter": "none", "required_plugins": ["acme>=1.2"]}).required_plugins == ("acme>=1.2",)
        with pytest.raises(ValueError, match=r"required_plugins\[1\]: plugin 'gone' is not installed"):
            load_config({"drafter": "none", "required_plugins": ["acme", "gone"]})
        with pytest.raises(ValueError, match=r"required_plugins\[0\]: not a requirement"):
            load_config({"drafter": "none", "required_plugins": ["=="]})


def test_use_puts_the_old_manager_back():
    before, other = discover(), PluginManager()
    with pytest.raises(KeyError), use(other):
        assert discover() is other
        raise KeyError
    assert discover() is before
