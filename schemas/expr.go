package schemas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
)

// costLimit bounds one evaluation, in CEL's own units: far beyond any honest
// expression, and a fraction of a second of work.
const costLimit = 1_000_000

// expression is a compiled CEL expression.
type expression struct {
	program cel.Program
	checked *ast.AST
	gives   *cel.Type
}

// language compiles expressions. One serves a registry while it loads; it is not
// for use by several at once.
type language struct {
	env      *cel.Env
	compiled map[string]*expression // by source: variants repeat each other
}

func newLanguage() (*language, error) {
	adapter := treeAdapter{types.DefaultTypeAdapter}
	dyn := cel.MapType(cel.StringType, cel.DynType)
	env, err := cel.NewEnv(
		cel.CustomTypeAdapter(adapter),
		cel.OptionalTypes(),
		ext.Strings(), ext.Math(), ext.Lists(ext.ListsMaxRangeSize(10_000)), ext.Bindings(),
		cel.EagerlyValidateDeclarations(true),
		cel.ParserExpressionSizeLimit(8192),
		cel.ParserRecursionLimit(100),
		cel.Variable(varArgs, dyn), cel.Variable(varCall, dyn), cel.Variable(varInputs, dyn),
		cel.Variable(varOutputs, cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable(varSteps, dyn), cel.Variable(varTool, cel.DynType), cel.Variable(varArtifacts, dyn),
		cel.Variable(varPrograms, dyn), cel.Variable(varWork, cel.StringType), cel.Variable(varParsed, cel.DynType),
		cel.Variable(varSecrets, cel.MapType(cel.StringType, cel.StringType)),
		// text(x.y) is a number's own text, which the number itself does not carry.
		cel.Macros(cel.GlobalMacro("text", 1, expandText)),
		cel.Function("@text",
			cel.Overload("text_of_member", []*cel.Type{cel.DynType, cel.DynType}, cel.StringType, cel.BinaryBinding(textOfMember)),
			cel.Overload("text_of_value", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(textOfValue))),
		// clock_seconds("01:02:03.5") is 3723.5.
		cel.Function("clock_seconds",
			cel.Overload("clock_seconds_string", []*cel.Type{cel.StringType}, cel.DoubleType, cel.UnaryBinding(clockSeconds))),
	)
	if err != nil {
		return nil, fmt.Errorf("set the expression language up: %w", err)
	}
	return &language{env: env, compiled: map[string]*expression{}}, nil
}

// compile compiles and type-checks an expression that must give one of the wanted
// types; a type that is only known at run time is checked then.
func (l *language) compile(source string, want ...*cel.Type) (*expression, error) {
	x, ok := l.compiled[source]
	if !ok {
		parsed, issues := l.env.Compile(source)
		if issues.Err() != nil {
			return nil, errors.New(issues.String())
		}
		program, err := l.env.Program(parsed, cel.CostLimit(costLimit), cel.InterruptCheckFrequency(100))
		if err != nil {
			return nil, errors.New("the expression cannot be prepared: " + err.Error())
		}
		x = &expression{program: program, checked: parsed.NativeRep(), gives: parsed.OutputType()}
		l.compiled[source] = x
	}
	// An empty map has no type of key yet.
	if !x.gives.IsExactType(cel.DynType) && !x.gives.IsExactType(cel.MapType(cel.DynType, cel.DynType)) && !slices.ContainsFunc(want, func(w *cel.Type) bool { return w.IsAssignableType(x.gives) }) {
		return nil, fmt.Errorf("the expression gives %s; %s is wanted", x.gives, want[0])
	}
	return x, nil
}

// eval evaluates an expression. Every error in it is an error here; nothing that
// calls it takes one for a yes.
func (x *expression) eval(ctx context.Context, vars map[string]any) (value ref.Val, err error) {
	defer func() {
		if r := recover(); r != nil {
			value, err = nil, errors.New("the expression evaluator failed; that is a fault in macexec")
		}
	}()
	value, _, err = x.program.ContextEval(ctx, vars)
	if err != nil {
		return nil, err
	}
	return value, nil
}

func (x *expression) bool(ctx context.Context, vars map[string]any) (bool, error) {
	v, err := x.eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the expression gives %s; a bool is wanted", v.Type())
	}
	return bool(b), nil
}

func (x *expression) string(ctx context.Context, vars map[string]any) (string, error) {
	v, err := x.eval(ctx, vars)
	if err != nil {
		return "", err
	}
	s, ok := v.(types.String)
	if !ok {
		return "", fmt.Errorf("the expression gives %s; a string is wanted", v.Type())
	}
	return string(s), nil
}

// strings takes a string or a list of strings. A number is refused: how it is
// to be written is the manifest's to say.
func (x *expression) strings(ctx context.Context, vars map[string]any) ([]string, error) {
	v, err := x.eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case types.String:
		return []string{string(v)}, nil
	case traits.Lister:
		out := []string{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			s, ok := it.Next().(types.String)
			if !ok {
				return nil, errors.New("the expression gives a list that holds more than strings; use string()")
			}
			out = append(out, string(s))
		}
		return out, nil
	default:
		return nil, fmt.Errorf("the expression gives %s; a string or a list of strings is wanted; use string()", v.Type())
	}
}

func (x *expression) number(ctx context.Context, vars map[string]any) (float64, error) {
	v, err := x.eval(ctx, vars)
	if err != nil {
		return 0, err
	}
	switch v := v.(type) {
	case types.Int:
		return float64(v), nil
	case types.Double:
		return float64(v), nil
	default:
		return 0, fmt.Errorf("the expression gives %s; a number is wanted", v.Type())
	}
}

// treeTypes are the types that tree takes. What is inside of one is seen at run
// time.
func treeTypes() []*cel.Type {
	return []*cel.Type{
		cel.MapType(cel.StringType, cel.DynType), cel.ListType(cel.DynType),
		cel.StringType, cel.BoolType, cel.IntType, cel.UintType, cel.DoubleType, cel.NullType,
	}
}

// tree gives the value as Parse would make it.
func (x *expression) tree(ctx context.Context, vars map[string]any) (any, error) {
	v, err := x.eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	return toTree(v)
}

func toTree(v ref.Val) (any, error) {
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.String:
		return string(v), nil
	case types.Int:
		return json.Number(fmt.Sprintf("%d", int64(v))), nil
	case types.Uint:
		return json.Number(fmt.Sprintf("%d", uint64(v))), nil
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, errors.New("the expression gives a number that is not finite")
		}
		text, err := json.Marshal(float64(v))
		return json.Number(text), err
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return toTree(v.GetValue())
	case traits.Mapper:
		if raw, ok := v.Value().(map[string]any); ok {
			return raw, nil // as it was parsed, numbers with their text
		}
		object := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key, ok := it.Next().(types.String)
			if !ok {
				return nil, errors.New("the expression gives a map whose names are not strings")
			}
			item, err := toTree(v.Get(key))
			if err != nil {
				return nil, err
			}
			object[string(key)] = item
		}
		return object, nil
	case traits.Lister:
		if raw, ok := v.Value().([]any); ok {
			return raw, nil
		}
		array := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			item, err := toTree(it.Next())
			if err != nil {
				return nil, err
			}
			array = append(array, item)
		}
		return array, nil
	default:
		return nil, fmt.Errorf("the expression gives %s, which JSON cannot hold", v.Type())
	}
}

// treeAdapter shows parsed JSON to expressions: a number is an int if its value is
// one exactly, else a double.
type treeAdapter struct{ types.Adapter }

func (a treeAdapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case json.Number:
		return number(string(v))
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	default:
		return a.Adapter.NativeToValue(v)
	}
}

func number(text string) ref.Val {
	// Only numbers within Parse's limits come here, so the rational stays small.
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return types.NewErr("the number %s cannot be used", quoted(text))
	}
	if r.IsInt() && r.Num().IsInt64() {
		return types.Int(r.Num().Int64())
	}
	f, _ := r.Float64()
	if math.IsInf(f, 0) {
		return types.NewErr("the number %s is too large to calculate with", quoted(text))
	}
	return types.Double(f)
}

// expandText turns text(a.b) and text(a[b]) into a look at the member b of a,
// where the number still has its text.
func expandText(mef cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	switch arg := args[0]; {
	case arg.Kind() == ast.SelectKind && !arg.AsSelect().IsTestOnly():
		return mef.NewCall("@text", arg.AsSelect().Operand(), mef.NewLiteral(types.String(arg.AsSelect().FieldName()))), nil
	case arg.Kind() == ast.CallKind && arg.AsCall().FunctionName() == operators.Index:
		return mef.NewCall("@text", arg.AsCall().Args()...), nil
	default:
		return mef.NewCall("@text", arg), nil
	}
}

func textOfMember(container, key ref.Val) ref.Val {
	switch raw := container.Value().(type) {
	case map[string]any:
		if name, ok := key.(types.String); ok {
			if n, ok := raw[string(name)].(json.Number); ok {
				return types.String(n)
			}
		}
	case []any:
		if i, ok := key.(types.Int); ok && i >= 0 && int(i) < len(raw) {
			if n, ok := raw[i].(json.Number); ok {
				return types.String(n)
			}
		}
	}
	indexer, ok := container.(traits.Indexer)
	if !ok {
		return types.NewErr("text() wants a number or a text")
	}
	return textOfValue(indexer.Get(key))
}

func textOfValue(v ref.Val) ref.Val {
	switch v := v.(type) {
	case *types.Err:
		return v
	case types.String:
		return v
	case types.Int, types.Uint, types.Double:
		return v.ConvertToType(types.StringType)
	default:
		return types.NewErr("text() wants a number or a text, not %s", v.Type())
	}
}

// clockSeconds reads hours:minutes:seconds, as media tools write a duration.
func clockSeconds(v ref.Val) ref.Val {
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	parts := strings.Split(string(text), ":")
	total := 0.0
	for _, p := range parts {
		n, err := strconv.ParseFloat(p, 64)
		if err != nil || n < 0 || math.IsInf(n, 0) || math.IsNaN(n) {
			return types.NewErr("%s is not hours:minutes:seconds", quoted(string(text)))
		}
		total = total*60 + n
	}
	if len(parts) != 3 {
		return types.NewErr("%s is not hours:minutes:seconds", quoted(string(text)))
	}
	return types.Double(total)
}
