"""The names a pickle may ask for: what `torch.load(weights_only=True)` takes, and other classes that only hold data.

Nothing here is ever looked up: a name that is not on the list is a reason to refuse the file, one that is on it becomes
a record of having been asked for.
"""

TENSORS = frozenset(
    f"torch._utils.{name}"
    for name in (
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_qtensor",
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_sparse_tensor",
        "_rebuild_meta_tensor_no_storage",
        "_rebuild_nested_tensor",
        "_rebuild_wrapper_subclass",
        "_rebuild_device_tensor_from_numpy",
        "_rebuild_device_tensor_from_cpu_tensor",
    )
) | {"torch._tensor._rebuild_from_type_v2"}

_PLAIN_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}
_QUANTISED = {"QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4"}
# What each class of storage holds; of the one without a dtype the tensor says it.
STORAGES = {
    "torch.storage.UntypedStorage": "",
    **{f"torch.{kind}Storage": dtype for kind, dtype in (_PLAIN_STORAGES | _QUANTISED).items()},
    **{f"torch.cuda.{kind}Storage": dtype for kind, dtype in _PLAIN_STORAGES.items()},
}

_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "qint8", "quint8", "qint32", "quint4x2", "quint2x4"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
)
DTYPES = frozenset(f"torch.{name}" for name in _DTYPES)

_KINDS_OF_TENSOR = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_TENSOR_CLASSES = frozenset(
    f"torch.{place}{kind}Tensor"
    for place in ("", "cuda.", "sparse.", "cuda.sparse.")
    for kind in _KINDS_OF_TENSOR
    if not (kind == "Bool" and "sparse" in place)
)

_VALUES = frozenset(
    {
        *("torch.Tensor", "torch.nn.parameter.Parameter", "torch.storage.UntypedStorage", "torch.storage.TypedStorage"),
        *("torch.per_tensor_affine", "torch.per_tensor_symmetric", "torch.per_channel_affine"),
        *("torch.per_channel_symmetric", "torch.per_channel_affine_float_qparams"),
    }
)

_MADE = frozenset(
    {
        *("collections.OrderedDict", "collections.Counter", "torch.serialization._get_layout", "torch.Size"),
        *("torch.device", "_codecs.encode", "builtins.bytearray", "builtins.set", "builtins.complex"),
        *("torch.nn.parameter.Parameter", "torch.Tensor"),
    }
)

# Tensors of several processes, and ragged ones; torch takes them with weights_only=True once it has imported these.
IMPORTED_LATE = frozenset(
    {
        "torch._dynamo.decorators._DimRange",
        "torch.distributed._mesh_layout._FlatLayout",
        "torch.distributed._mesh_layout._MeshLayout",
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed.tensor._dtensor_spec.DTensorSpec",
        "torch.distributed.tensor._dtensor_spec.ShardOrderEntry",
        "torch.distributed.tensor._dtensor_spec.TensorMeta",
        "torch.distributed.tensor.DTensor",
        "torch.distributed.tensor.placement_types.Partial",
        "torch.distributed.tensor.placement_types.Replicate",
        "torch.distributed.tensor.placement_types.Shard",
        "torch.distributed.tensor.placement_types._StridedShard",
        "torch.nested._internal.nested_tensor.NestedTensor",
        "torch.nested._internal.nested_tensor._rebuild_njt",
    }
)

WEIGHTS_ONLY = TENSORS | frozenset(STORAGES) | DTYPES | _TENSOR_CLASSES | _VALUES | _MADE

# Common in training checkpoints. torch refuses them with weights_only=True, though none does more than hold values.
HOLDS_DATA = frozenset(
    {
        *(f"builtins.{name}" for name in ("int", "float", "str", "bool", "bytes", "list", "dict", "tuple")),
        *("builtins.frozenset", "builtins.range", "builtins.slice", "builtins.object", "copyreg._reconstructor"),
        *("argparse.Namespace", "types.SimpleNamespace", "collections.deque", "collections.defaultdict"),
        *("datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta", "datetime.timezone"),
        *("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "torch.torch_version.TorchVersion"),
        *(f"pathlib.{name}" for name in ("Path", "PurePath", "PosixPath", "PurePosixPath")),
        *(f"pathlib.{name}" for name in ("WindowsPath", "PureWindowsPath")),
        *(f"pathlib._local.{name}" for name in ("Path", "PosixPath", "PurePosixPath", "WindowsPath")),
        *("numpy.ndarray", "numpy.dtype", "numpy._core.multiarray.scalar", "numpy._core.multiarray._reconstruct"),
        *("numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct", "numpy._core.numeric._frombuffer"),
        "numpy.core.numeric._frombuffer",
    }
)

# What gives a tensor when it is called, whether it is one that is read or not.
MADE_AS_TENSORS = (
    TENSORS
    | _TENSOR_CLASSES
    | {
        *("torch.Tensor", "torch.nn.parameter.Parameter", "torch.distributed.tensor.DTensor"),
        *("torch.nested._internal.nested_tensor.NestedTensor", "torch.nested._internal.nested_tensor._rebuild_njt"),
    }
)

# Attributes that every tensor has by itself: setting one changes its values, or fails.
OWN_ATTRIBUTES = frozenset(
    {
        *("H", "T", "__class__", "__cuda_array_interface__", "__dict__", "__weakref__", "_backward_hooks", "_base"),
        *("_cdata", "_grad", "_grad_fn", "_has_symbolic_sizes_strides", "_post_accumulate_grad_hooks"),
        *("_python_dispatch", "_version", "data", "device", "dtype", "grad", "grad_dtype", "grad_fn", "imag"),
        *(f"is_{kind}" for kind in ("cpu", "cuda", "ipu", "leaf", "maia", "meta", "mkldnn", "mps", "mtia", "nested")),
        *(f"is_{kind}" for kind in ("quantized", "sparse", "sparse_csr", "vulkan", "xla", "xpu")),
        *("itemsize", "layout", "mH", "mT", "name", "names", "nbytes", "ndim", "output_nr", "real", "requires_grad"),
        *("retains_grad", "shape", "volatile"),
    }
)

_METADATA = "torch.distributed.checkpoint.metadata"
DISTRIBUTED_METADATA = (
    frozenset(
        f"{_METADATA}.{name}"
        for name in (
            *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "MetadataIndex"),
            *("ChunkStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        )
    )
    | {
        *(
            "torch.distributed.checkpoint.filesystem._StorageInfo",
            "torch.distributed.checkpoint.filesystem._StoragePrefix",
        ),
        *("torch.distributed._shard.sharded_tensor.metadata.TensorProperties",),
        *("torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",),
        *("torch.Size", "torch.serialization._get_layout", "collections.OrderedDict", "builtins.set"),
        *(f"pathlib.{name}" for name in ("PosixPath", "WindowsPath", "PurePosixPath")),
        *(f"pathlib._local.{name}" for name in ("PosixPath", "WindowsPath", "PurePosixPath")),
    }
    | DTYPES
)

_CALLED = (
    TENSORS
    | _MADE
    | IMPORTED_LATE
    | (HOLDS_DATA - {"builtins.object"})
    | frozenset(name for name in DISTRIBUTED_METADATA if name not in DTYPES)
    | _TENSOR_CLASSES
    | {"torch.storage.UntypedStorage", "torch.storage.TypedStorage"}
)


def is_plain(name: str) -> bool:
    """Whether a file of weights may ask for it."""
    return name in WEIGHTS_ONLY or name in HOLDS_DATA or name in IMPORTED_LATE


def is_metadata(name: str) -> bool:
    """Whether the metadata of a distributed checkpoint may ask for it."""
    return name in DISTRIBUTED_METADATA


def is_called(name: str) -> bool:
    """Whether what is asked for may be called as well: a dtype, say, may not."""
    return name in _CALLED
