{{/*
A Job of an uninstall. Its arguments are a list: the root, its name, its hook, when Helm prints its log,
its command, its deadline in seconds. Its pod needs no network of its own: the agents may be gone, or broken.
*/}}
{{- define "berth.uninstall" -}}
{{- $name := index . 1 -}}
{{- $hook := index . 2 -}}
{{- $print := index . 3 -}}
{{- $command := index . 4 -}}
{{- $deadline := index . 5 -}}
{{- with index . 0 -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ $name }}
    app.kubernetes.io/part-of: berth
  annotations:
    helm.sh/hook: {{ $hook }}
    helm.sh/hook-weight: "1"
    # A Job that failed stays, with its log.
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    helm.sh/hook-output-log-policy: {{ $print }}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: {{ $deadline }}
  ttlSecondsAfterFinished: 3600
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ $name }}
        app.kubernetes.io/part-of: berth
    spec:
      serviceAccountName: berth-uninstall
      {{- with .Values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      restartPolicy: Never
      priorityClassName: system-cluster-critical
      hostNetwork: true
      # Where Berth was the only network, nodes are not ready after it.
      tolerations:
        - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
        - {key: node.kubernetes.io/not-ready, operator: Exists}
        - {key: node.kubernetes.io/network-unavailable, operator: Exists}
      containers:
        - name: uninstall
          image: {{ include "berth.image" (list . "controller" .Values.controller.digest) }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args: {{- toYaml $command | nindent 12 }}
          resources:
            requests: {cpu: 10m, memory: 32Mi}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            runAsNonRoot: true
            runAsUser: 65532
            runAsGroup: 65532
            seccompProfile:
              type: RuntimeDefault
            capabilities:
              drop: [ALL]
{{- end -}}
{{- end -}}
