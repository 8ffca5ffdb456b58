{{/*
What OpenShift lets pods do that work on the node. Its arguments are a list: the root, its name, annotations,
the ServiceAccount of the pods.
*/}}
{{- define "berth.scc" -}}
{{- $name := index . 1 -}}
{{- $annotations := index . 2 -}}
{{- $account := index . 3 -}}
{{- with index . 0 -}}
apiVersion: security.openshift.io/v1
kind: SecurityContextConstraints
metadata:
  name: {{ $name }}
  labels:
    app.kubernetes.io/part-of: berth
  {{- with $annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
allowPrivilegedContainer: false
allowPrivilegeEscalation: false
allowHostNetwork: true
allowHostPorts: true
allowHostDirVolumePlugin: true
allowHostIPC: false
# With agent.hostRoot plugins run in the node's file system.
allowHostPID: {{ .Values.agent.hostRoot }}
allowedCapabilities: [NET_ADMIN, NET_RAW, SYS_ADMIN{{ if .Values.agent.hostRoot }}, SYS_CHROOT{{ end }}]
defaultAddCapabilities: []
requiredDropCapabilities: [ALL]
readOnlyRootFilesystem: true
runAsUser: {type: RunAsAny}
seLinuxContext: {type: RunAsAny}
fsGroup: {type: RunAsAny}
supplementalGroups: {type: RunAsAny}
seccompProfiles: [runtime/default]
volumes: [configMap, downwardAPI, emptyDir, hostPath, projected, secret]
priority: null
users: ["system:serviceaccount:{{ .Release.Namespace }}:{{ $account }}"]
groups: []
{{- end -}}
{{- end -}}
