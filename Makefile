CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0

generate:
	$(CONTROLLER_GEN) object paths=./ipam/api/... crd:crdVersions=v1 output:crd:dir=manifests/crd
