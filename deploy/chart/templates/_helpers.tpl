{{/* The image of a service: by its own tag if there is one, else by the digest of all, else by the tag of all. */}}
{{- define "jobwheel.image" -}}
{{- $image := .all.image -}}
{{- if and $image.digest (not .tag) -}}
{{- printf "%s@%s" $image.repository $image.digest | toJson -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (.tag | default $image.tag | default .appVersion) | toJson -}}
{{- end -}}
{{- end -}}

{{/* Other settings have another name, so that they roll the services out, and pods of before keep theirs. */}}
{{- define "jobwheel.settings" -}}
settings-{{ .Values.settings | toJson | sha256sum | trunc 10 }}
{{- end -}}

{{/* Kubernetes takes texts only: no 64, and no true. */}}
{{- define "jobwheel.settingsData" -}}
{{- $data := dict -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $data $name (kindIs "string" $value | ternary $value (toJson $value)) -}}
{{- end -}}
{{- toJson $data -}}
{{- end -}}
