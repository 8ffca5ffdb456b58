{{/*
The DaemonSet that cleans the nodes. Its arguments are a list: the root, annotations of the DaemonSet.
*/}}
{{- define "berth.cleanup" -}}
{{- $annotations := index . 1 -}}
{{- with index . 0 -}}
# Leaves every node as it was before Berth was installed; see docs/how-to/uninstall.md. A pod is
# Ready when its node is clean.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: berth-cleanup
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/name: berth-cleanup
    app.kubernetes.io/part-of: berth
  {{- with $annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: berth-cleanup
  updateStrategy:
    rollingUpdate:
      maxUnavailable: 100%
  template:
    metadata:
      labels:
        app.kubernetes.io/name: berth-cleanup
        app.kubernetes.io/part-of: berth
    spec:
      automountServiceAccountToken: false
      {{- if .Values.openshift.enabled }}
      serviceAccountName: {{ if $annotations }}berth-uninstall{{ else }}berth-agent{{ end }}
      {{- end }}
      {{- with .Values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      priorityClassName: {{ .Values.agent.priorityClassName }}
      hostNetwork: true
      # Also nodes that are not ready, which they are without a CNI configuration.
      {{- with .Values.agent.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.agent.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.agent.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: 5
      containers:
        - name: cleanup
          image: {{ include "berth.image" (list . "agent" .Values.agent.digest) }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args:
            - cleanup
            - --root=/host
            - --stay
            {{- if ne .Values.agent.cniBinDir "/opt/cni/bin" }}
            - --cni-bin-dir={{ .Values.agent.cniBinDir }}
            {{- end }}
            {{- if ne .Values.agent.cniConfDir "/etc/cni/net.d" }}
            - --cni-conf-dir={{ .Values.agent.cniConfDir }}
            {{- end }}
            {{- range .Values.agent.extraArgs }}
            {{- /* Where the agents left their files. */}}
            {{- if regexMatch "^--(cni-conf-name|cni-conf-dir|cni-bin-dir|cni-cache-dir|state-file|socket)=" . }}
            - {{ . | quote }}
            {{- end }}
            {{- end }}
          # Looks at the node itself.
          readinessProbe:
            exec:
              command:
                - /berth-agent
                - cleanup
                - --root=/host
                - --check
                {{- if ne .Values.agent.cniBinDir "/opt/cni/bin" }}
                - --cni-bin-dir={{ .Values.agent.cniBinDir }}
                {{- end }}
                {{- if ne .Values.agent.cniConfDir "/etc/cni/net.d" }}
                - --cni-conf-dir={{ .Values.agent.cniConfDir }}
                {{- end }}
                {{- range .Values.agent.extraArgs }}
                {{- if regexMatch "^--(cni-conf-name|cni-conf-dir|cni-bin-dir|cni-cache-dir|state-file|socket)=" . }}
                - {{ . | quote }}
                {{- end }}
                {{- end }}
            periodSeconds: 5
            # A busy node answers late.
            timeoutSeconds: 30
          resources:
            requests: {cpu: 10m, memory: 32Mi}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            runAsUser: 0
            seccompProfile:
              type: RuntimeDefault
            {{- with include "berth.confinement" . }}
            {{- . | nindent 12 }}
            {{- end }}
            # NET_ADMIN: links, routes, neighbours, nftables, kernel settings. SYS_ADMIN: to enter
            # the network namespaces of pods, where network policies have rules.
            capabilities:
              drop: [ALL]
              add: [NET_ADMIN, SYS_ADMIN]
          volumeMounts:
            - {name: host-root, mountPath: /host}
      volumes:
        - name: host-root
          hostPath: {path: /, type: Directory}
{{- end -}}
{{- end -}}
