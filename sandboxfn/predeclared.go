package sandboxfn

// These are the predeclared identifiers under names that nothing can hide.
// Generated code uses them in a package that declares, say, its own error or
// string; in any other it uses the usual names. There is no reason to write
// them by hand.
type (
	PredeclaredBool    = bool
	PredeclaredByte    = byte
	PredeclaredError   = error
	PredeclaredFloat32 = float32
	PredeclaredFloat64 = float64
	PredeclaredInt     = int
	PredeclaredInt8    = int8
	PredeclaredInt16   = int16
	PredeclaredInt32   = int32
	PredeclaredInt64   = int64
	PredeclaredRune    = rune
	PredeclaredString  = string
	PredeclaredUint    = uint
	PredeclaredUint8   = uint8
	PredeclaredUint16  = uint16
	PredeclaredUint32  = uint32
	PredeclaredUint64  = uint64
	PredeclaredAny     = any

	PredeclaredComplex64  = complex64
	PredeclaredComplex128 = complex128
	PredeclaredUintptr    = uintptr
)

// PredeclaredTrue is true, see [PredeclaredBool].
const PredeclaredTrue = true
