package engine

import "maps"

// slotRule is how many jobs of a class run at once on a host that says nothing else:
// one for so many processors, or several for each, as far as the memory goes, and at
// least one. docs/scheduling.md shows the table.
type slotRule struct {
	class  string
	per    int   // processors for one job; 0: see each
	each   int   // jobs for one processor
	memory int64 // bytes that one job is reckoned with; 0: none worth reckoning
	why    string
}

func slotRules() []slotRule {
	return []slotRule{
		{class: "video", per: 8, memory: 4 << 30, why: "an encoder uses every core it finds"},
		{class: "image", per: 2, memory: 1 << 30, why: "decoded pixels lie in memory"},
		{class: "audio", each: 1, memory: 512 << 20, why: "a codec uses one core"},
		{class: "inspect", each: 2, memory: 256 << 20, why: "it mostly waits for the disk"},
		{class: publishSlot, each: 2, why: "it renames files and starts no process"},
	}
}

// defaultSlots are the sizes of the classes that macexec's own tools use, by the
// hardware; memory 0 means that it is not known.
func defaultSlots(cpus int, memory int64) map[string]int {
	sizes := map[string]int{}
	for _, r := range slotRules() {
		n := cpus * r.each
		if r.per > 0 {
			n = cpus / r.per
		}
		if r.memory > 0 && memory > 0 {
			n = min(n, int(memory/r.memory))
		}
		sizes[r.class] = max(n, 1)
	}
	return sizes
}

// slotSizes are the defaults with what the operator configured.
func slotSizes(cpus int, memory int64, configured map[string]int) map[string]int {
	sizes := defaultSlots(cpus, memory)
	maps.Copy(sizes, configured)
	return sizes
}
