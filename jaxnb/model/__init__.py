"""What crosses between processes, and what a session hands to its user.

All are frozen dataclasses of plain data. Nothing here imports jax, IPython or ipyparallel,
so a notebook can hold every one of them without any of those.

Times are in seconds; sizes end in ``_bytes``; indices are half-open ``(start, stop)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxnb._lazy import lazy

if TYPE_CHECKING:
    from jaxnb.model.cells import (
        CellMemory,
        CellReply,
        CellRequest,
        ProcessError,
        RichOutput,
        StreamChunk,
        StreamName,
        ValueInfo,
    )
    from jaxnb.model.collectives import (
        AxisTotal,
        Collective,
        CollectiveKind,
        Compiled,
        CompiledReport,
        CompileStage,
        Memory,
        NotCompiled,
        Part,
        SourceLine,
    )
    from jaxnb.model.comparisons import (
        Column,
        ComparisonReport,
        ComparisonStage,
        LeafLayout,
        OutputWarning,
        Timing,
        Variant,
        VariantFailure,
    )
    from jaxnb.model.dispatches import (
        CheckMode,
        Dispatch,
        DispatchEnd,
        Divergence,
        DivergenceKind,
        Recording,
        Side,
        Trail,
    )
    from jaxnb.model.group import (
        DeviceInfo,
        GroupInfo,
        ProcessInfo,
        ProcessReport,
        ProcessState,
        SessionState,
    )
    from jaxnb.model.history import CellOutcome, CellRecord
    from jaxnb.model.layout import (
        MAX_DIGEST_BYTES,
        ArrayInfo,
        ArrayLeaf,
        MeshInfo,
        ShardInfo,
    )
    from jaxnb.model.pitfalls import PITFALL_KINDS, Pitfall, PitfallKind
    from jaxnb.model.plans import PlanPiece, PlanReply, PlanRequest
    from jaxnb.model.record import NotMoved, Record
    from jaxnb.model.requests import (
        CallRequest,
        CheckRequest,
        JoinRequest,
        JointRequest,
        Request,
        RequestFailed,
    )
    from jaxnb.model.statistics import DeviceStats, LargeArray
    from jaxnb.model.timeline import (
        SPAN_KINDS,
        Activity,
        CallSite,
        Late,
        ProcessTimeline,
        Span,
        SpanKind,
        Straggler,
        Timeline,
    )
    from jaxnb.model.timing import CellTiming, ProcessTiming
    from jaxnb.model.transfers import (
        Chunk,
        Exposed,
        ExposeRequest,
        Exposure,
        Gone,
        HostArray,
        LayoutReply,
        MemoryPass,
        NotFound,
        Packed,
        PackRequest,
        PartRequest,
        Placed,
        PlaceRequest,
        Refused,
        SliceInfo,
    )
    from jaxnb.model.whereabouts import (
        AtWork,
        SentinelAddress,
        SentinelFault,
        StackEntry,
        Wait,
        Waits,
        Whereabouts,
    )

__all__ = [
    "MAX_DIGEST_BYTES",
    "PITFALL_KINDS",
    "SPAN_KINDS",
    "Activity",
    "ArrayInfo",
    "ArrayLeaf",
    "AtWork",
    "AxisTotal",
    "CallRequest",
    "CallSite",
    "CellMemory",
    "CellOutcome",
    "CellRecord",
    "CellReply",
    "CellRequest",
    "CellTiming",
    "CheckMode",
    "CheckRequest",
    "Chunk",
    "Collective",
    "CollectiveKind",
    "Column",
    "ComparisonReport",
    "ComparisonStage",
    "CompileStage",
    "Compiled",
    "CompiledReport",
    "DeviceInfo",
    "DeviceStats",
    "Dispatch",
    "DispatchEnd",
    "Divergence",
    "DivergenceKind",
    "ExposeRequest",
    "Exposed",
    "Exposure",
    "Gone",
    "GroupInfo",
    "HostArray",
    "JoinRequest",
    "JointRequest",
    "LargeArray",
    "Late",
    "LayoutReply",
    "LeafLayout",
    "Memory",
    "MemoryPass",
    "MeshInfo",
    "NotCompiled",
    "NotFound",
    "NotMoved",
    "OutputWarning",
    "PackRequest",
    "Packed",
    "Part",
    "PartRequest",
    "Pitfall",
    "PitfallKind",
    "PlaceRequest",
    "Placed",
    "PlanPiece",
    "PlanReply",
    "PlanRequest",
    "ProcessError",
    "ProcessInfo",
    "ProcessReport",
    "ProcessState",
    "ProcessTimeline",
    "ProcessTiming",
    "Record",
    "Recording",
    "Refused",
    "Request",
    "RequestFailed",
    "RichOutput",
    "SentinelAddress",
    "SentinelFault",
    "SessionState",
    "ShardInfo",
    "Side",
    "SliceInfo",
    "SourceLine",
    "Span",
    "SpanKind",
    "StackEntry",
    "Straggler",
    "StreamChunk",
    "StreamName",
    "Timeline",
    "Timing",
    "Trail",
    "ValueInfo",
    "Variant",
    "VariantFailure",
    "Wait",
    "Waits",
    "Whereabouts",
]

__getattr__ = lazy(
    __name__,
    [
        f"jaxnb.model.{module}"
        for module in (
            "layout",
            "cells",
            "dispatches",
            "pitfalls",
            "group",
            "record",
            "statistics",
            "whereabouts",
            "transfers",
            "requests",
            "collectives",
            "comparisons",
            "plans",
            "timeline",
            "timing",
            "history",
        )
    ],
)


def __dir__() -> list[str]:
    return __all__
