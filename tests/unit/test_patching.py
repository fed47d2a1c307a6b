"""Stand-ins take a place, answer like what they stand for, and give the place back exactly."""

import copy
import inspect
import pickle
import random
import sys
import threading
import types

import pytest

from msprobe_core.interception.patching import AliasSearch, FunctionPatch, Outermost, Patch, Patches, original_of


def double(x, *, times=2):
    """Multiply."""
    return x * times


double.mark = "kept"
HELD = [double]  # not by name, which would be replaced too


class Owner:
    def method(self, x):
        return (self, x)

    @staticmethod
    def static(x):
        return x

    @classmethod
    def kind(cls, x):
        return (cls, x)


class Heir(Owner):
    pass


calls = []


def note(function, args, kwargs):
    calls.append((function, args, kwargs))
    return function(*args, **kwargs)


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


@pytest.fixture
def here():
    return sys.modules[__name__]


def test_a_function_of_a_module(here):
    patch = FunctionPatch(here, "double", note)
    patch.install()
    assert double(3, times=4) == 12
    assert calls == [(HELD[0], (3,), {"times": 4})]
    patch.remove()
    patch.remove()
    assert double is HELD[0]
    assert patch(3) == 6  # whoever has kept it
    assert len(calls) == 1


def test_a_function_with_a_keyword_named_self():
    module = types.SimpleNamespace(gate=lambda self, by=2: self * by)  # as operators of torch_npu are declared
    patch = FunctionPatch(module, "gate", note)
    patch.install()
    assert module.gate(self=3) == 6
    patch.remove()
    assert calls[0][2] == {"self": 3}


def test_it_answers_like_the_original(here):
    patch = FunctionPatch(here, "double", note)
    patch.install()
    try:
        assert (double.__name__, double.__doc__, double.__module__, double.mark) == (
            "double",
            "Multiply.",
            __name__,
            "kept",
        )
        assert inspect.signature(double) == inspect.signature(HELD[0])
        assert repr(double) == repr(HELD[0])
        assert original_of(double) is HELD[0]
        text = pickle.dumps({"f": double})
        assert b"msprobe_core" not in text
        assert pickle.loads(text)["f"] is double
        assert copy.deepcopy([double])[0] is double
    finally:
        patch.remove()
    assert pickle.loads(text)["f"] is HELD[0]


def test_a_bound_method_is_pickled_by_its_place():
    patch = FunctionPatch(random, "random", note)
    patch.install()
    try:
        text = pickle.dumps(random.random)
    finally:
        patch.remove()
    assert pickle.loads(text) is random.random
    assert b"msprobe" not in text


@pytest.mark.parametrize("owner", [Owner, Heir])
@pytest.mark.parametrize("name", ["method", "static", "kind"])
def test_functions_of_classes_are_bound_as_before(owner, name):
    before = dict(vars(owner))
    instance = owner()
    expected = getattr(instance, name)(3)
    patch = FunctionPatch(owner, name, note)
    patch.install()
    found = getattr(instance, name)(3)
    patch.remove()
    assert found == expected
    assert len(calls) == 1
    assert dict(vars(owner)) == before


def test_an_attribute_of_an_object():
    instance = Owner()
    patch = FunctionPatch(instance, "method", note)
    patch.install()
    assert instance.method(1) == (instance, 1)
    patch.remove()
    assert vars(instance) == {}
    assert len(calls) == 1


def test_an_attribute_made_on_demand():
    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            if name == "made":
                return HELD[0]
            raise AttributeError(name)

    module = Lazy("lazy")
    patch = FunctionPatch(module, "made", note)
    patch.install()
    assert module.made(1) == 2
    patch.remove()
    assert "made" not in vars(module)


def test_what_cannot_be_replaced_says_so():
    with pytest.raises(TypeError):
        Patch(int, "bit_length").install()
    with pytest.raises(AttributeError):
        Patch(Owner, "nothing").install()


def test_a_function_replaced_by_another_program_is_left_alone(here):
    patch = FunctionPatch(here, "double", note)
    patch.install()
    theirs = here.double = lambda x: -x
    patch.remove()
    assert here.double is theirs
    here.double = HELD[0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_patches_upon_each_other_go_in_any_order(here, order):
    alias = types.ModuleType("standin_alias")
    sys.modules["standin_alias"] = alias
    alias.by_name = double
    groups = [Patches([FunctionPatch(here, "double", note)]) for _ in range(2)]
    try:
        for group in groups:
            group.install()
        assert alias.by_name(1) == 2
        assert len(calls) == 2
        groups[order[0]].remove()
        assert alias.by_name(1) == double(1) == 2
        assert len(calls) == 4
        groups[order[1]].remove()
        assert alias.by_name is double is HELD[0]
    finally:
        del sys.modules["standin_alias"]


def test_names_in_other_modules_are_replaced(here):
    alias = types.ModuleType("standin_alias")
    sys.modules["standin_alias"] = alias
    alias.by_name = double
    group = Patches([FunctionPatch(here, "double", note)])
    try:
        group.install()
        assert alias.by_name is double is not HELD[0]
        alias.since = double
        group.remove()
        assert alias.by_name is HELD[0]
        assert alias.since(2) == 4
        assert calls == []
    finally:
        del sys.modules["standin_alias"]


def test_groups_that_come_after_each_other_share_what_was_found(here, monkeypatch):
    search, alias = AliasSearch(), types.ModuleType("standin_alias")
    monkeypatch.setitem(sys.modules, "standin_alias", alias)
    alias.by_name = double
    for _ in range(3):
        patch = FunctionPatch(here, "double", note)
        group = Patches([patch], search=search)
        group.install()
        try:
            assert alias.by_name is patch
        finally:
            group.remove()
        assert alias.by_name is HELD[0]
    # A module of the same name and size that takes its place is searched, and the one that is gone is forgotten.
    again = types.ModuleType("standin_alias")
    again.other_name = double
    monkeypatch.setitem(sys.modules, "standin_alias", again)
    found = found_by(search, here)
    assert (vars(again), "other_name") in found
    assert all(names is not vars(alias) for names, _ in found)


def found_by(search, here):
    """Where a search finds the function that a patch has taken the place of."""
    patch = FunctionPatch(here, "double", note)
    patch.install()
    try:
        return [(names, name) for names, name, found in search.run([patch]) if found is patch]
    finally:
        patch.remove()


def test_modules_are_gone_through_once(here, monkeypatch):
    search, alias = AliasSearch(), types.ModuleType("standin_alias")
    monkeypatch.setitem(sys.modules, "standin_alias", alias)
    alias.by_name = double
    assert (vars(alias), "by_name") in found_by(search, here)
    alias.kept, alias.by_name = double, None  # one name more: gone through again
    assert [name for names, name in found_by(search, here) if names is vars(alias)] == ["kept"]
    alias.moved = vars(alias).pop("kept")  # as many as before: not gone through
    assert not [name for names, name in found_by(search, here) if names is vars(alias)]


def test_modules_that_are_imported_meanwhile_hold_no_patch_afterwards(here):
    group, late = Patches([FunctionPatch(here, "double", note)]), types.ModuleType("standin_late")
    group.install()
    try:
        sys.modules["standin_late"] = late
        late.by_name = double
        assert late.by_name(1) == 2
        assert len(calls) == 1
    finally:
        group.remove()
        del sys.modules["standin_late"]
    assert late.by_name is HELD[0]


def test_a_group_is_taken_whole_or_not_at_all(here):
    with pytest.raises(AttributeError):
        Patches([FunctionPatch(here, "double", note), FunctionPatch(here, "nothing", note)]).install()
    assert double is HELD[0]


def test_it_steps_aside_on_demand(here):
    patch = FunctionPatch(here, "double", note, lambda: True)
    patch.install()
    assert double(1) == 2
    patch.remove()
    assert calls == []


def test_each_thread_has_its_own_outermost_call():
    outermost, found = Outermost(), []
    with outermost as first, outermost as second:
        thread = threading.Thread(target=lambda: found.append(outermost.__enter__()))
        thread.start()
        thread.join()
    with pytest.raises(KeyError), outermost:
        raise KeyError
    with outermost as again:
        pass
    assert (first, second, found, again) == (True, False, [True], True)
