"""Variables of a cell that a recovery carries over: what is asked of them in the new process."""

CELL = """
from jax.sharding import AxisType, Mesh
import builtins, collections, dataclasses, functools, os, socket, sys, threading, types, weakref

mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
rows = NamedSharding(mesh, P("a", None))
half = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("c",)), P("c"))

x = jax.device_put(jnp.arange(16.0).reshape(4, 4), rows)
nested = {"x": x, "again": [{"x": x}], "sharding": rows}
weak = jnp.asarray(2.0)
bfloat = jnp.ones((100, 1000), jnp.bfloat16)
int4 = jnp.arange(7, dtype=jnp.int4)
keys = jax.random.split(jax.random.key(1, impl="rbg"), 4)
sub = jax.device_put(jnp.arange(4), half)
on_one = jax.device_put(jnp.ones(3), jax.devices()[2])
deleted = jnp.ones(5)
deleted.delete()
large = jax.device_put(jnp.arange(1 << 18, dtype=jnp.float32), NamedSharding(mesh, P(("a", "b"))))
noted = jnp.ones(2)
noted.note = "mine"
ref = jax.new_ref(jnp.arange(3.0))
ref[1] = 10.0

scale = 3.0
def helper(v): return v * scale
@jax.jit
def jitted(v): return helper(v) + x.sum()
placed = jax.jit(lambda v: v @ v.T, out_shardings=rows)
mapped = jax.jit(jax.shard_map(
    lambda v: jax.lax.psum(v, "a"), mesh=mesh, in_specs=P("a", None), out_specs=P(None, None)))
vjp = jax.custom_vjp(lambda v: v * 2)
vjp.defvjp(lambda v: (v * 2, v), lambda r, ct: (ct * 100,))
@functools.cache
def cached(n): return n * scale
cached(1)
partial = functools.partial(jitted, x)
tree_partial = jax.tree_util.Partial(helper, x)
def counter():
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    return count
count = counter()
count()

BASE = 10
import traitlets
class Options(traitlets.HasTraits):
    n = traitlets.Int(3)
    def plus(self): return self.n + 1
    def twice(self, base=BASE): return 2 * base
options = Options(n=5)
SIZE = 7
@dataclasses.dataclass
class Data2:
    n: int = SIZE
BASE = SIZE = 0
def rates():
    value = [1.0]
    rate_now = 1.0
    def rate(): return rate_now
    def set_rate(new):
        nonlocal rate_now
        rate_now = new
    return rate, set_rate
rate, set_rate = rates()
class Called:
    def __init__(self, a): self.a = a
jax.tree_util.register_pytree_node(Called, lambda c: ((c.a,), None), lambda _, c: Called(*c))
called = Called(1)
class Proxy:
    def __init__(self, target): self._target = target
    def __getattr__(self, name): return getattr(self._target, name)
proxy = Proxy([1, 2])
class Logged(dict):
    def __init__(self): self.log = []
    def __setitem__(self, key, value):
        self.log.append(key)
        super().__setitem__(key, value)
logged = Logged()
logged["a"] = 1
class Exits:
    def __setstate__(self, state): raise SystemExit(3)
exits = Exits()
exits.a = 1
precious, precious_too = 42, [42]
Point = collections.namedtuple("Point", "a b")
point = Point(1, x)
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    w: jax.Array
    n: int = dataclasses.field(default=3, metadata=dict(static=True))
data = Data(x, 4)
@jax.tree_util.register_pytree_with_keys_class
class Keyed:
    def __init__(self, a, b): self.a, self.b = a, b
    def tree_flatten_with_keys(self):
        keys = map(jax.tree_util.GetAttrKey, ("a", "b"))
        return tuple(zip(keys, (self.a, self.b))), None
    @classmethod
    def tree_unflatten(cls, aux, children): return cls(*children)
keyed = Keyed(x, weak)
registered = []
def register(kind):
    registered.append(kind.__name__)
    __import__("builtins").effects = effects = [kind.__name__]
    return kind
class Base:
    total = 0
    def hi(self): return "base"
@register
class Sub(Base):
    def __init__(self): self.lock, self.v = threading.Lock(), x
    def hi(self): return "sub " + super().hi()
    @functools.cached_property
    def slow(self): return 42
    @property
    def scaled(self): return scale
sub_object = Sub()
Sub.total = 7
bound = sub_object.hi
class Old: which = 1
old = Old()
class Old: which = 2
module = types.ModuleType("own")
module.mesh = mesh

config, out, log = jax.config, sys.stdout, __import__("logging").getLogger("a")
weak_reference = weakref.ref(sub_object)
weak_values = weakref.WeakValueDictionary(a=sub_object)
numbers = np.arange(200_000.0)
every_other = numbers[::2]
numbers[0] = 1.0
read_only = np.ones(100_000)
read_only.flags.writeable = False
cycle = [1]
cycle.append(cycle)

state = {"loader": (i for i in range(3)), "params": {"w": x}, "file": open(os.devnull)}
lock, thread, sock = threading.Lock(), threading.Thread(target=print), socket.socket()
compiled, lowered = jax.jit(lambda v: v + 1).lower(x).compile(), jax.jit(lambda v: v).lower(x)
leak = []
@jax.jit
def leaky(v):
    leak.append(v)
    return v
leaky(1.0)
class Raises:
    def __reduce__(self): raise ValueError("no way")
raises = [Raises(), 1]
class Garbage:
    def __reduce__(self): return 3
garbage = Garbage()
class Fails:
    def __setstate__(self, state): raise ValueError("not here")
fails = {"it": Fails(), "x": x, "late": [1]}
fails["it"].a = {"n": 1}
whole, late = fails["it"].a, [fails["late"]]
deep = []
for _ in range(5_000):
    deep = [deep]
args = functools.partial(print, (i for i in range(2)))
def closes_over():
    inside = (i for i in range(2))
    def function(): return next(inside)
    return function
closure = closes_over()
"""

CHECKS = {
    "a sharded array": "x.sharding == rows and [*map(float, np.ravel(x))] == [*range(16)]",
    "what was shared": "nested['x'] is x and nested['again'][0]['x'] is x and x.sharding is rows",
    "a mesh": "rows.mesh is mesh and mesh.axis_names == ('a', 'b') and mesh.devices.size == 4",
    "a weak type": "weak.weak_type and not weak.committed and float(weak) == 2",
    "bfloat16": "bfloat.dtype == jnp.bfloat16 and float(bfloat.astype(float).sum()) == 100_000",
    "int4": "int4.dtype == jnp.int4 and [*map(int, int4)] == [*range(7)]",
    "keys of rbg": "(jax.random.key_data(keys) == jax.random.key_data(jax.random.split("
    "jax.random.key(1, impl='rbg'), 4))).all()",
    "a sub-mesh": "sub.sharding == half and [*map(int, sub)] == [0, 1, 2, 3]",
    "a committed array": "on_one.committed and on_one.devices() == {jax.devices()[2]}",
    "a large array": "(np.asarray(large) == np.arange(1 << 18)).all() and large.committed",
    "an attribute of an array": "noted.note == 'mine'",
    "a ref": "[*map(float, ref[...])] == [0, 10, 2]",
    "a ref is written to": "ref.__setitem__(0, 5.0) or float(ref[0]) == 5",
    "a jitted function": "float(jitted(1.0)) == 123",
    "its globals are the namespace's": "globals().update(scale=4.0) or helper(1.0) == 4.0",
    "shardings of a jitted function": "placed(x).sharding == rows",
    "shard_map": "(mapped(x) == x[:2] + x[2:]).all()",
    "custom_vjp": "float(jax.grad(vjp)(1.0)) == 100",
    "a cached function": "cached.cache_info().currsize == 0 and cached(2) == 2 * scale",
    "partial": "partial.args[0] is x and jax.tree.leaves(tree_partial)[0] is x",
    "a closure's variable": "count() == 2",
    "a named tuple": "point.b is x and type(point) is Point",
    "a registered dataclass": "data.n == 4 and jax.tree.leaves(data)[0] is x",
    "a pytree with keys": "jax.tree_util.tree_leaves_with_path(keyed)[0][0][0].name == 'a'",
    "a decorator is not run again": "registered == ['Sub'] and 'effects' not in dir(builtins)",
    "a class of a library's metaclass": "options.n == 5 and options.trait_names() == ['n'] and "
    "Options().n == 3 and options.plus() == 6 and Options.traits is not None",
    "a default of then": "options.twice() == 20 and Data2().n == 7",
    "functions that share a variable": "set_rate(5.0) or rate() == 5.0",
    "registered by a call": "jax.tree.leaves(called) == [1]",
    "what delegates all": "type(proxy).__name__ == 'Proxy' or raised(lambda: proxy + 1)",
    "beside what fails as it is filled": "precious == 42 and precious_too == [42]",
    "a class": "sub_object.hi() == bound() == 'sub base' and bound.__self__ is sub_object",
    "a class's value": "Sub.total == 7 and Base.total == 0 and sub_object.slow == 42",
    "a class whose name was bound anew": "old.which == 1 and Old().which == 2",
    "a module made in a cell": "module.mesh is mesh and module.__name__ == 'own'",
    "a library's own objects": "config is jax.config and out is sys.stdout and log.name == 'a'",
    "weak references": "weak_reference() is sub_object and weak_values['a'] is sub_object",
    "NumPy's arrays": "numbers[0] == 1 and numbers.flags.writeable and every_other[1] == 2",
    "a read-only array": "not read_only.flags.writeable",
    "a cycle": "cycle[1] is cycle",
    "beside what is lost": "state['params']['w'] is x and raises[1] == 1",
    "what is whole in what fails": "whole == {'n': 1}",
    "what is not made in what fails": "'not here' in raised(lambda: late[0][0])",
    "a lost iterator": "raised(lambda: next(state['loader'])).startswith(\"`state['loader'\")",
    "a lost array": "'tracer' in raised(lambda: leak[0] + 1)",
    "a lost object": "raised(lambda: lock.acquire()).startswith('`lock` (lock, also in')",
    "what cannot be made here": "'not here' in raised(lambda: fails['it'].a)",
}

ASK = f"""
from jaxnb.errors import ValueGoneError
def raised(use):
    try: use()
    except ValueGoneError as error: return str(error)
    return "nothing"
found = {{}}
for name, check in {CHECKS!r}.items():
    try: found[name] = bool(eval(check))
    except Exception as error: found[name] = f"{{type(error).__name__}}: {{error}}"
found
"""

LOST = {
    "proxy": ("value", "nested too deep"),
    "logged": ("value", "AttributeError: 'Logged' object has no attribute 'log'"),
    "exits": ("value", "SystemExit: 3"),
    "fails": ("value", "ValueError: not here"),
    "state['loader']": ("generator", "cannot be pickled: generator"),
    "state['file']": ("TextIOWrapper", "an open file"),
    "sub_object.lock": ("lock", "cannot be pickled: lock"),
    "lock": ("lock", "cannot be pickled: lock"),
    "deleted": ("float32[5]", "it had been deleted, or donated to a computation"),
    "thread": ("Thread", "has a "),  # what, differs by Python's version
    "sock": ("socket", "cannot be pickled: socket"),
    "compiled": ("Compiled", "what lower(...).compile() gave: compile it again"),
    "lowered": ("Lowered", "what lower(...) gave: lower it again"),
    "leak[0]": ("DynamicJaxprTracer", "a tracer that escaped its transformation (jit, grad …)"),
    "raises[0]": ("Raises", "ValueError: no way"),
    "garbage": ("Garbage", "its __reduce__ returned int"),
    "deep": ("list", "nested too deep"),
    "args.args[0]": ("generator", "cannot be pickled: generator"),
    "closure's variable inside": ("generator", "cannot be pickled: generator"),
}
