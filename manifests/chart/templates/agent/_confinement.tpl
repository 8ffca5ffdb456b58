{{/*
What SELinux and AppArmor allow the containers that work on the node, a part of their securityContext.
*/}}
{{- define "berth.confinement" -}}
{{- with .Values.agent.seLinuxOptions }}
seLinuxOptions: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.agent.appArmorProfile | default .Values.appArmorProfile }}
appArmorProfile: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
