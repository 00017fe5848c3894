package server

import (
	"slices"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// roleNone is the need of a method that any peer may use.
const roleNone Role = ""

// permissions says which role each method needs. A method that is not here is
// refused, so a new one cannot be forgotten silently.
func permissions() map[string]Role {
	return map[string]Role{
		macexecv1.ToolService_ListTools_FullMethodName: RoleViewer,
		macexecv1.ToolService_GetTool_FullMethodName:   RoleViewer,
		macexecv1.ToolService_CheckCall_FullMethodName: RoleCaller,

		macexecv1.JobService_SubmitJob_FullMethodName:   RoleCaller,
		macexecv1.JobService_GetJob_FullMethodName:      RoleViewer,
		macexecv1.JobService_LookupKey_FullMethodName:   RoleViewer,
		macexecv1.JobService_ListJobs_FullMethodName:    RoleViewer,
		macexecv1.JobService_WatchJobs_FullMethodName:   RoleViewer,
		macexecv1.JobService_ReadJobLogs_FullMethodName: RoleViewer,
		macexecv1.JobService_CancelJob_FullMethodName:   RoleCaller,
		macexecv1.JobService_ApproveJob_FullMethodName:  RoleApprover,
		macexecv1.JobService_DenyJob_FullMethodName:     RoleApprover,
		macexecv1.JobService_CancelRun_FullMethodName:   RoleCaller,
		macexecv1.JobService_FenceKey_FullMethodName:    RoleCaller,
		macexecv1.JobService_WaitJob_FullMethodName:     RoleViewer,
		macexecv1.JobService_SumUsage_FullMethodName:    RoleViewer,
		macexecv1.JobService_ResolveJob_FullMethodName:  RoleOperator,
		macexecv1.JobService_ProbeJob_FullMethodName:    RoleOperator,

		macexecv1.FileService_UploadFile_FullMethodName:   RoleCaller,
		macexecv1.FileService_StatUpload_FullMethodName:   RoleCaller,
		macexecv1.FileService_DownloadFile_FullMethodName: RoleViewer,
		macexecv1.FileService_StatFile_FullMethodName:     RoleViewer,

		macexecv1.JournalService_ReadJournal_FullMethodName:   RoleViewer,
		macexecv1.JournalService_VerifyJournal_FullMethodName: RoleViewer,

		macexecv1.HostService_GetHost_FullMethodName:       RoleViewer,
		macexecv1.HostService_WhoAmI_FullMethodName:        roleNone,
		macexecv1.HostService_ListProjects_FullMethodName:  RoleViewer,
		macexecv1.HostService_AddProject_FullMethodName:    RoleOperator,
		macexecv1.HostService_RemoveProject_FullMethodName: RoleOperator,
		macexecv1.HostService_SetHostMode_FullMethodName:   RoleOperator,
		macexecv1.HostService_ReloadConfig_FullMethodName:  RoleOperator,
		macexecv1.HostService_GetConfig_FullMethodName:     RoleOperator,

		macexecv1.StoreService_BackupStore_FullMethodName:    RoleOperator,
		macexecv1.StoreService_ConfirmRestore_FullMethodName: RoleOperator,
		macexecv1.StoreService_DescribeStore_FullMethodName:  RoleOperator,
		macexecv1.StoreService_PruneStore_FullMethodName:     RoleOperator,

		healthpb.Health_Check_FullMethodName: roleNone,
		healthpb.Health_List_FullMethodName:  roleNone,
		healthpb.Health_Watch_FullMethodName: roleNone,

		reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: RoleViewer,
	}
}

// authorize checks that the principal has the role that the method needs. It comes
// before anything is looked up, so a refusal tells nothing about what exists (G10).
func (s *Server) authorize(p Principal, method string) error {
	need, listed := s.permissions[method]
	if listed && (need == roleNone || slices.Contains(p.Roles, need)) {
		return nil
	}
	return jobs.Errorf(jobs.CodeNotAuthorized, "%s needs the role %q, which %s does not have", method, need, p.Name).
		With("method", method).With("role", string(need))
}
