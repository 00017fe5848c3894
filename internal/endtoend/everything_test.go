package endtoend

import (
	"encoding/json"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// checkEverything holds what must be true after every test, whatever happened in it:
// each ended job carries evidence (G5), each start comes after a decision in the
// journal (G9), and the journal is whole.
func (d *daemon) checkEverything() {
	d.t.Helper()
	ctx := d.context()
	for token, first := "", true; first || token != ""; first = false {
		page, err := d.Jobs.ListJobs(ctx, &macexecv1.ListJobsRequest{PageToken: token})
		if err != nil {
			d.t.Fatalf("list the jobs: %v", err)
		}
		for _, job := range page.GetJobs() {
			d.checkEvidence(job)
		}
		token = page.GetNextPageToken()
	}
	decided := map[string]bool{} // by job
	next := uint64(1)
	err := d.ReadJournal(ctx, &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		if e.GetSeq() != next {
			d.t.Errorf("the journal goes from %d to %d", next-1, e.GetSeq())
		}
		next = e.GetSeq() + 1
		switch {
		case e.GetKind() == "job.submitted":
			var data struct {
				Decision struct {
					Effect string   `json:"effect"`
					Rules  []string `json:"rules"`
				} `json:"decision"`
			}
			if err := json.Unmarshal(e.GetData(), &data); err != nil || data.Decision.Effect == "" || len(data.Decision.Rules) == 0 {
				d.t.Errorf("entry %d has no decision: %s", e.GetSeq(), e.GetData())
			}
			decided[e.GetJobId()] = data.Decision.Effect == "allow"
		case e.GetEvent() == macexecv1.JobEvent_JOB_EVENT_APPROVE:
			decided[e.GetJobId()] = true
		case e.GetEvent() == macexecv1.JobEvent_JOB_EVENT_START:
			if !decided[e.GetJobId()] {
				d.t.Errorf("entry %d starts job %s before it is allowed", e.GetSeq(), e.GetJobId())
			}
		}
		return nil
	})
	if err != nil {
		d.t.Fatalf("read the journal: %v", err)
	}
	verified, err := d.Journal.VerifyJournal(ctx, &macexecv1.VerifyJournalRequest{})
	if err != nil || !verified.GetReport().GetOk() {
		d.t.Errorf("the journal does not hold: %v %v", verified, err)
	}
}

func (d *daemon) checkEvidence(job *macexecv1.Job) {
	d.t.Helper()
	switch job.GetState() {
	case macexecv1.JobState_JOB_STATE_COMPLETED, macexecv1.JobState_JOB_STATE_FAILED, macexecv1.JobState_JOB_STATE_CANCELLED:
		if len(job.GetEvidence()) == 0 || job.GetEndReason() == macexecv1.EndReason_END_REASON_UNSPECIFIED || job.GetEndedAt() == nil {
			d.t.Errorf("job %s is %s (%s) with evidence %v", job.GetId(), job.GetState(), job.GetEndReason(), job.GetEvidence())
		}
	case macexecv1.JobState_JOB_STATE_UNKNOWN:
		if job.GetEndedAt() != nil || job.GetSideEffect() == macexecv1.SideEffect_SIDE_EFFECT_NONE {
			d.t.Errorf("job %s is unknown, ended at %v, with side effect %s", job.GetId(), job.GetEndedAt(), job.GetSideEffect())
		}
	default:
	}
}
